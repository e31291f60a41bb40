//! The console: a page for browsers that shows what the node does, and can change nothing.
//!
//! The page is three files embedded in the binary; its data are JSON, one sample a second for as long as somebody watches
//! ([`sampler`]). The page makes text of what it is sent, never markup. Not here: signing in. Whoever reaches the listener may
//! look, as with `/metrics`, so that no secret is among what is sent ([`sample`]).

mod guard;
mod rates;
mod sample;
mod sampler;

use crate::config::NodeConfig;
use crate::log::Recent;
use crate::node::look::Look;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
pub use guard::{Names, guard_scrapes};
use guard::{guard, guard_data};
use sampler::{NoSample, Sampler, Samples};
use tokio::sync::{mpsc, oneshot};

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const JSON: &str = "application/json";

/// Path, type and content of the files. The page is at the root.
const FILES: [(&str, &str, &str); 7] = [
    ("/", HTML, include_str!("assets/index.html")),
    ("/console/style.css", "text/css; charset=utf-8", include_str!("assets/style.css")),
    ("/console/icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
    ("/console/main.js", SCRIPT, include_str!("assets/main.js")),
    ("/console/panels.js", SCRIPT, include_str!("assets/panels.js")),
    ("/console/chart.js", SCRIPT, include_str!("assets/chart.js")),
    ("/console/text.js", SCRIPT, include_str!("assets/text.js")),
];

/// The console's routes, and what makes its samples.
pub struct Console {
    samples: Samples,
    sampler: Sampler,
    names: Names,
}

impl Console {
    /// A console, and its requests for looks at the node. `log` has the last warnings and errors.
    pub fn new(config: &NodeConfig, log: Recent) -> (Console, mpsc::Receiver<oneshot::Sender<Look>>) {
        let (looks, asked) = mpsc::channel(1);
        let (samples, sampler) = sampler::new(looks, log);
        (Console { samples, sampler, names: Names::new(&config.console_names) }, asked)
    }

    /// Adds the console to `router`, and starts what makes its samples.
    pub fn add_to(self, router: Router) -> Router {
        tokio::spawn(self.sampler.run());
        let data = Router::new()
            .route("/console/sample", get(sample).route_layer(from_fn(guard_data)))
            .route("/console/history", get(history).route_layer(from_fn(guard_data)));
        let console = FILES.iter().fold(data, |router, (path, kind, content)| {
            router.route(path, get(move || async move { ([(header::CONTENT_TYPE, *kind)], *content) }))
        });
        let console = console.layer(from_fn_with_state(self.names, guard));
        router.merge(console.with_state(self.samples))
    }
}

/// `?after=N`: the number of the sample that the watcher has; 0 or nothing is none.
fn after(query: Option<&str>) -> Option<u64> {
    match query {
        None | Some("") => Some(0),
        Some(query) => query.strip_prefix("after=")?.parse().ok(),
    }
}

async fn sample(State(samples): State<Samples>, uri: Uri) -> Response {
    let Some(after) = after(uri.query()) else {
        return (StatusCode::BAD_REQUEST, "The query is after=N, N the number of the sample before.\n").into_response();
    };
    match samples.next(after).await {
        Ok(json) => ([(header::CONTENT_TYPE, JSON)], json).into_response(),
        Err(reason) => {
            let problem = match reason {
                NoSample::Crowded => "{\"problem\":\"crowded\"}",
                NoSample::Stopping => "{\"problem\":\"stopping\"}",
            };
            let headers = [(header::CONTENT_TYPE, JSON), (header::RETRY_AFTER, "5")];
            (StatusCode::SERVICE_UNAVAILABLE, headers, problem).into_response()
        }
    }
}

async fn history(State(samples): State<Samples>) -> Response {
    ([(header::CONTENT_TYPE, JSON)], samples.history()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_is_a_number_or_nothing() {
        assert_eq!((after(None), after(Some("")), after(Some("after=7"))), (Some(0), Some(0), Some(7)));
        for wrong in ["after=", "after=-1", "after=x", "after=1&after=2", "before=1", "after=99999999999999999999"] {
            assert_eq!(after(Some(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn no_file_carries_script_or_style_that_the_policy_forbids() {
        for (path, kind, content) in FILES {
            for forbidden in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "//cdn", "https://"]
            {
                assert!(!content.contains(forbidden), "{path}: {forbidden}");
            }
            if kind == HTML {
                for forbidden in ["style=", "<style", "onclick", "onload", "<script>"] {
                    assert!(!content.contains(forbidden), "{path}: {forbidden}");
                }
            }
        }
    }
}
