//! What every answer of the console, `/metrics` and `/healthz` carries, and which requests get one.
//!
//! A page of another site can have its own name point at this machine (DNS rebinding) and would then be of one origin with
//! the console. Such a page calls the console by that name: only addresses, `localhost`, the machine's name and those that
//! the configuration lists are answered. Programs that ask for `/metrics` or `/healthz` may call it what they like: no page sends what they
//! send.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
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

/// The header that a request for data has to carry. Another site's page can make a browser send it only after asking for
/// leave, which nobody gets.
const OWN: HeaderName = HeaderName::from_static("x-remuda");

/// Answers requests for one of `names` alone, and adds the headers to every answer.
pub async fn guard(State(names): State<Names>, request: Request, next: Next) -> Response {
    let refusal = misnamed(&names, request.headers()).or_else(|| foreign(request.headers()));
    answer(refusal, request, next).await
}

/// The same for `/metrics` and `/healthz`, where only browsers have to use one of `names`.
pub async fn guard_scrapes(State(names): State<Names>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let misnamed = misnamed(&names, headers).filter(|_| from_browser(headers));
    let refusal = misnamed.or_else(|| foreign(headers));
    answer(refusal, request, next).await
}

/// Answers what asks for data on purpose: places for watchers are few.
pub async fn guard_data(request: Request, next: Next) -> Response {
    if request.headers().get(OWN).is_some_and(|value| value == "1") {
        return next.run(request).await;
    }
    (StatusCode::FORBIDDEN, "Send the header 'X-Remuda: 1': pages of other sites cannot.\n").into_response()
}

async fn answer(refusal: Option<Response>, request: Request, next: Next) -> Response {
    let mut response = match refusal {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn text_of(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The refusal of a request that calls us by none of `names`.
fn misnamed(names: &Names, headers: &HeaderMap) -> Option<Response> {
    let ours = text_of(headers, header::HOST).is_some_and(|host| names.has(host));
    let text = "This node answers browsers that call it by an address, localhost or the machine's name. Call it by one of \
                them, or add the name to console_names in the configuration.\n";
    (!ours).then(|| (StatusCode::MISDIRECTED_REQUEST, text).into_response())
}

/// The refusal of what a page of another site asks for. Following a link is the user's doing, and shows that page nothing.
fn foreign(headers: &HeaderMap) -> Option<Response> {
    let site = headers.get("sec-fetch-site").is_some_and(|site| site != "none" && site != "same-origin");
    let host = text_of(headers, header::HOST);
    let origin = headers.get(header::ORIGIN).is_some_and(|origin| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        origin.is_none_or(|(_, origin)| Some(origin) != host)
    });
    let navigation = headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate");
    let refused = origin || site && !navigation;
    refused.then(|| (StatusCode::FORBIDDEN, "This is not for pages of other sites.\n").into_response())
}

/// Whether a browser sends this. Pages of some can change the User-Agent, but not all that browsers add.
fn from_browser(headers: &HeaderMap) -> bool {
    let signs = ["accept-language", "cookie", "origin", "referer", "sec-fetch-mode", "sec-fetch-site"];
    text_of(headers, header::USER_AGENT).is_some_and(|agent| agent.starts_with("Mozilla/"))
        || signs.iter().any(|sign| headers.contains_key(*sign))
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
