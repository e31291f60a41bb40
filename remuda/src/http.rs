//! `/metrics` in the Prometheus text format, and `/healthz`.

use crate::node::Node;
use crate::node::reactors::Meter;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// Scrapes waiting at most.
const SCRAPES_MAX: usize = 16;

/// What the HTTP side sees of the node: counters shared with the reactors, refreshed when objects come and go.
#[derive(Clone)]
pub struct Metrics {
    reactors: Vec<Meter>,
    objects: Arc<Mutex<Objects>>,
    refresh: mpsc::Sender<oneshot::Sender<()>>,
}

#[derive(Default)]
struct Objects {
    stopping: bool,
    devices: Vec<Gauge>,
    volumes: Vec<Gauge>,
    connections: u64,
}

struct Gauge {
    name: String,
    kind: String,
    size: u64,
}

impl Metrics {
    /// The metrics of `node`, and the requests to [`update`](Self::update) them and to say when that is done.
    pub fn new(node: &Node) -> (Metrics, mpsc::Receiver<oneshot::Sender<()>>) {
        let (refresh, requests) = mpsc::channel(SCRAPES_MAX);
        (Metrics { reactors: node.reactors().meters(), objects: Arc::default(), refresh }, requests)
    }

    /// Notes which objects there are.
    pub async fn update(&self, node: &Node) {
        let devices = node.device_list().into_iter();
        let devices = devices.map(|device| Gauge { name: device.name, kind: device.kind, size: device.size });
        let volumes = node.volume_list().into_iter();
        let volumes = volumes.map(|volume| Gauge { name: volume.name, kind: "volume".into(), size: volume.size });
        let connections = node.exporter().counters().await.connections;
        let mut objects = self.objects.lock().expect("nothing panics while holding it");
        objects.devices = devices.collect();
        objects.volumes = volumes.collect();
        objects.connections = connections;
    }

    /// `/healthz` says so from now on.
    pub fn stopping(&self) {
        self.objects.lock().expect("nothing panics while holding it").stopping = true;
    }

    fn render(&self) -> String {
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, help: &str, lines: Vec<(String, f64)>| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in lines {
                let _ = writeln!(out, "{name}{labels} {value}");
            }
        };
        family(
            "remuda_info",
            "gauge",
            "The program.",
            vec![(format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1.0)],
        );
        let seconds = |ns: u64| ns as f64 / 1e9;
        let mut time = Vec::new();
        let mut sleeps = Vec::new();
        for (index, meter) in self.reactors.iter().enumerate() {
            let counters = meter.read();
            for (state, ns) in [("busy", counters.busy_ns), ("spin", counters.spin_ns), ("sleep", counters.sleep_ns)] {
                time.push((format!("{{reactor=\"{index}\",state=\"{state}\"}}"), seconds(ns)));
            }
            sleeps.push((format!("{{reactor=\"{index}\"}}"), counters.sleeps as f64));
        }
        family("remuda_reactor_seconds_total", "counter", "Where a reactor's time went.", time);
        family("remuda_reactor_sleeps_total", "counter", "Times a reactor went to sleep.", sleeps);
        let objects = self.objects.lock().expect("nothing panics while holding it");
        let sizes = |gauges: &[Gauge]| {
            let each = gauges.iter();
            each.map(|one| (format!("{{name=\"{}\",kind=\"{}\"}}", one.name, one.kind), one.size as f64)).collect()
        };
        family("remuda_device_size_bytes", "gauge", "Size of a device.", sizes(&objects.devices));
        family("remuda_volume_size_bytes", "gauge", "Size of a volume.", sizes(&objects.volumes));
        family(
            "remuda_nvmf_connections",
            "gauge",
            "TCP connections of hosts.",
            vec![(String::new(), objects.connections as f64)],
        );
        out
    }
}

/// Opens the listening socket.
pub async fn bind(address: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Serves for as long as it is polled.
pub async fn serve(listener: TcpListener, metrics: Metrics) {
    let router =
        Router::new().route("/metrics", get(show_metrics)).route("/healthz", get(show_health)).with_state(metrics);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::warn!("metrics: {error}");
    }
}

async fn show_metrics(State(metrics): State<Metrics>) -> impl IntoResponse {
    let (done, refreshed) = oneshot::channel();
    if metrics.refresh.send(done).await.is_ok() {
        // A node that is stopping answers no more; what was last known will do.
        let _ = refreshed.await;
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render())
}

async fn show_health(State(metrics): State<Metrics>) -> impl IntoResponse {
    if metrics.objects.lock().expect("nothing panics while holding it").stopping {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}
