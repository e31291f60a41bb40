//! How commands that are NVMe/TCP hosts themselves name a target, and say who they are.

use super::exit::{Exit, Failure};
use crate::config::check_nqn;
use clap::Args;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// The address or the name of a target; the port may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetAddress {
    /// An IP address, or a name that has yet to be looked up.
    host: String,
    /// Its port, if it was named.
    pub port: Option<u16>,
}

impl FromStr for TargetAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<TargetAddress, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(TargetAddress { host: address.ip().to_string(), port: Some(address.port()) });
        }
        if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(TargetAddress { host: ip.to_string(), port: None });
        }
        let expected = "expected an IP address or a name, with a port if need be, such as 192.0.2.1:4420 or [::1]:4420";
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse::<u16>().map_err(|_| expected.to_string())?)),
            None => (text, None),
        };
        if name.is_empty() || name.contains([':', '[', ']', '/', ' ']) {
            return Err(expected.to_string());
        }
        Ok(TargetAddress { host: name.to_string(), port })
    }
}

impl TargetAddress {
    /// The address; a name is looked up, and the first of several addresses taken.
    ///
    /// # Errors
    ///
    /// [`Exit::Failed`] where the name has no address.
    pub fn ip(&self) -> Result<IpAddr, Failure> {
        let name = &self.host;
        let unknown = |reason: String| {
            let text =
                format!("the name '{name}' has no address: {reason}; check how it is written, or give an IP address");
            Failure::new(Exit::Failed, text)
        };
        let mut found = (name.as_str(), 0).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
        found.next().map(|first| first.ip()).ok_or_else(|| unknown("nobody knows one".to_string()))
    }

    /// The address, with the port given beside it or `default`; it is a mistake to name it twice.
    ///
    /// # Errors
    ///
    /// As [`ip`](Self::ip), and [`Exit::Usage`] for two ports.
    pub fn with_port(&self, beside: Option<u16>, default: u16) -> Result<SocketAddr, Failure> {
        if let (Some(within), Some(beside)) = (self.port, beside)
            && within != beside
        {
            let text = format!("the port is given twice: {within} with the address, and --port {beside}");
            return Err(Failure::new(Exit::Usage, text));
        }
        Ok(SocketAddr::new(self.ip()?, self.port.or(beside).unwrap_or(default)))
    }
}

/// Who a command is towards targets.
#[derive(Args)]
pub struct HostArgs {
    /// The name given to the target [default: a new one]
    #[arg(long)]
    pub host_nqn: Option<String>,
    /// File with the key with which this host connects by TLS
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<String>,
    /// File with the key that this host proves to have
    #[arg(long, value_name = "FILE")]
    pub dhchap_key: Option<String>,
    /// File with the key that the target has to prove to have
    #[arg(long, value_name = "FILE", requires = "dhchap_key")]
    pub dhchap_ctrl_key: Option<String>,
}

impl HostArgs {
    /// Checks what can be checked without reading files.
    pub fn check(&self) -> Result<(), Failure> {
        self.host_nqn.iter().try_for_each(|name| check_nqn(name)).map_err(|reason| Failure::new(Exit::Usage, reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(String, Option<u16>), String> {
        text.parse::<TargetAddress>().map(|target| (target.host, target.port))
    }

    #[test]
    fn ports_may_be_left_out_and_names_given() {
        for (text, ip, port) in [
            ("192.0.2.1", "192.0.2.1", None),
            ("192.0.2.1:4421", "192.0.2.1", Some(4421)),
            ("::1", "::1", None),
            ("[::1]", "::1", None),
            ("[::1]:8009", "::1", Some(8009)),
        ] {
            assert_eq!(parsed(text), Ok((ip.to_string(), port)), "{text}");
        }
        assert_eq!(parsed("localhost:4420"), Ok(("localhost".to_string(), Some(4420))));
        for wrong in ["", ":4420", "192.0.2.1:99999", "a b", "tcp://192.0.2.1"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_port_is_named_once() {
        let target: TargetAddress = "192.0.2.1:4421".parse().expect("an address");
        assert_eq!(target.with_port(None, 1).map(|address| address.port()).ok(), Some(4421));
        assert_eq!(target.with_port(Some(4421), 1).map(|address| address.port()).ok(), Some(4421));
        assert!(target.with_port(Some(4420), 1).is_err());
        let bare: TargetAddress = "192.0.2.1".parse().expect("an address");
        assert_eq!(bare.with_port(Some(9), 1).map(|address| address.port()).ok(), Some(9));
        assert_eq!(bare.with_port(None, 1).map(|address| address.port()).ok(), Some(1));
    }
}
