//! What every answer of the console carries, and which requests get one.
//!
//! A page of another site can have its own name point at this machine (DNS rebinding) and would then be of one origin with
//! the console. Such a page calls the console by that name: only addresses, `localhost`, the machine's name and those that
//! the configuration lists are answered.

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Nothing but the console's own files runs, nothing frames it, nothing learns where it is.
const HEADERS: [(HeaderName, &str); 8] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// Names under which the console answers, besides addresses and `localhost`.
#[derive(Clone)]
pub struct Names(Arc<Vec<String>>);

impl Names {
    /// The machine's name, and those of the configuration.
    pub fn new(configured: &[String]) -> Names {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let own = Some(own.trim().to_string()).filter(|name| !name.is_empty());
        Names(Arc::new(configured.iter().cloned().chain(own).collect()))
    }

    /// Whether `host`, as a browser sends it, is one of ours.
    fn has(&self, host: &str) -> bool {
        let port = |port: &str| port.parse::<u16>().is_ok();
        if let Some(rest) = host.strip_prefix('[') {
            let Some((address, rest)) = rest.split_once(']') else { return false };
            return address.parse::<Ipv6Addr>().is_ok()
                && (rest.is_empty() || rest.strip_prefix(':').is_some_and(port));
        }
        let name = match host.split_once(':') {
            Some((name, digits)) if port(digits) => name,
            Some(_) => return false,
            None => host,
        };
        let same = |other: &String| other.eq_ignore_ascii_case(name);
        name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost") || self.0.iter().any(same)
    }
}

/// Answers requests for one of `names` alone, and adds the headers to every answer.
pub async fn guard(State(names): State<Names>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let ours = host.is_some_and(|host| names.has(host));
    // Another site may not make a browser wait here either: places for watchers are few.
    let foreign = request.headers().get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    let navigation = request.headers().get("sec-fetch-mode").is_some_and(|mode| mode == "navigate");
    let mut response = if !ours {
        let text = "This console answers to addresses, localhost and the machine's name. Call it by one of them, or add \
                    the name to console_names in the configuration.\n";
        (StatusCode::MISDIRECTED_REQUEST, text).into_response()
    } else if foreign && !navigation {
        (StatusCode::FORBIDDEN, "This is for the console's own pages.\n").into_response()
    } else {
        next.run(request).await
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_own_names_are_answered_and_other_names_are_not() {
        let names = Names(Arc::new(vec!["node7.example".into()]));
        let ours = ["127.0.0.1", "127.0.0.1:9420", "[::1]:9420", "[::1]", "localhost:9420", "LocalHost", "10.1.2.3:80"];
        for host in ours.into_iter().chain(["node7.example:9420", "NODE7.example"]) {
            assert!(names.has(host), "{host}");
        }
        let others = ["evil.example:9420", "127.0.0.1.evil.example", "localhost.evil.example", "", ":9420", "[::1"];
        for host in others.into_iter().chain(["[evil]:1", "node7.example:x", "127.0.0.1:9420:1", "::1", "localhost."]) {
            assert!(!names.has(host), "{host}");
        }
    }
}
