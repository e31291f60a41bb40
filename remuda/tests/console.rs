//! The console and the metrics through the built program: what is served, to whom, and what is refused.

use crate::common::pools::{NQN, POOL, bench, node};
use crate::common::{Node, remuda};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

/// An answer, its names of headers in lower case.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn json(&self) -> Value {
        assert_eq!((self.status, self.header("content-type")), (200, Some("application/json")), "{}", self.body);
        serde_json::from_str(&self.body).unwrap()
    }
}

/// The address of a node's console.
fn address(node: &Node) -> String {
    let status = node.status();
    status["metrics"].as_str().unwrap().trim_start_matches("http://").trim_end_matches("/metrics").to_string()
}

fn ask(node: &Node, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address(node)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_string(), body: body.to_string() }
}

fn request(node: &Node, method: &str, path: &str, headers: &str) -> Answer {
    ask(node, &format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n"))
}

fn get(node: &Node, path: &str) -> Answer {
    request(node, "GET", path, "Host: 127.0.0.1\r\nX-Remuda: 1\r\n")
}

/// What stands in `text` after each `before`, up to the next quotation mark.
fn quoted<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    text.split(before).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn the_page_is_served_whole_from_the_binary_under_a_strict_policy() {
    let node = Node::start("");
    let page = get(&node, "/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let files = [quoted(&page.body, "src=\"console/"), quoted(&page.body, "href=\"console/")].concat();
    let modules = get(&node, "/console/main.js").body + &get(&node, "/console/panels.js").body;
    let files = files.iter().copied().chain(quoted(&modules, "from \"./")).collect::<BTreeSet<_>>();
    assert!(files.len() >= 6, "{files:?}");
    for path in files.iter().map(|file| format!("/console/{file}")).chain(["/".into(), "/console/sample".into()]) {
        let answer = get(&node, &path);
        assert_eq!(answer.status, 200, "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
        for (name, value) in
            [("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"), ("cache-control", "no-store")]
        {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
    }
    assert_eq!(node.status()["console"], Value::from(format!("http://{}/", address(&node))));
}

#[test]
fn the_console_is_for_looking_alone() {
    let node = Node::start("");
    for path in ["/", "/console/sample", "/console/history", "/console/main.js"] {
        for method in ["POST", "PUT", "DELETE", "PATCH"] {
            let refused = request(&node, method, path, "Host: localhost\r\nContent-Length: 0\r\n");
            assert_eq!((refused.status, refused.header("allow")), (405, Some("GET,HEAD")), "{method} {path}");
        }
    }
    let head = request(&node, "HEAD", "/", "Host: localhost\r\n");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    for query in ["?after=x", "?after=-1", "?after=1&after=2", "?before=1", "?after=99999999999999999999"] {
        assert_eq!(get(&node, &format!("/console/sample{query}")).status, 400, "{query}");
    }
    for path in ["/console", "/console/", "/console/../Cargo.toml", "/console/%2e%2e/node.toml", "/console/mod.rs"] {
        assert_eq!(get(&node, path).status, 404, "{path}");
    }
}

#[test]
fn names_of_other_machines_and_pages_of_other_sites_get_no_answer() {
    let node = Node::start("console_names = ['node7.example']\n");
    for path in ["/", "/console/sample", "/console/main.js"] {
        for host in ["evil.example:9420", "127.0.0.1.evil.example", "localhost.evil.example"] {
            let refused = request(&node, "GET", path, &format!("Host: {host}\r\n"));
            assert_eq!(refused.status, 421, "{path} as {host}");
            assert!(refused.body.contains("console_names") && refused.header("x-frame-options") == Some("DENY"));
        }
        assert_eq!(ask(&node, &format!("GET {path} HTTP/1.0\r\n\r\n")).status, 421, "without a name at all");
        for host in ["localhost", "[::1]:9420", "node7.example:80"] {
            assert_eq!(
                request(&node, "GET", path, &format!("Host: {host}\r\nX-Remuda: 1\r\n")).status,
                200,
                "{path} as {host}"
            );
        }
        for site in ["cross-site", "same-site"] {
            let foreign =
                format!("Host: localhost\r\nX-Remuda: 1\r\nSec-Fetch-Site: {site}\r\nSec-Fetch-Mode: no-cors\r\n");
            assert_eq!(request(&node, "GET", path, &foreign).status, 403, "{path} from another site");
        }
    }
    let link = "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n";
    assert_eq!(request(&node, "GET", "/", link).status, 200, "by a link");
}

#[test]
fn data_are_for_those_who_ask_for_them_on_purpose() {
    let node = Node::start("");
    for path in ["/console/sample", "/console/history"] {
        for header in ["", "X-Remuda: 0\r\n"] {
            let refused = request(&node, "GET", path, &format!("Host: localhost\r\n{header}"));
            assert!(refused.status == 403 && refused.body.contains("X-Remuda: 1"), "{path}: {}", refused.body);
        }
        let asks_leave = "Origin: http://evil.example\r\nAccess-Control-Request-Method: GET\r\n\
                          Access-Control-Request-Headers: x-remuda\r\n";
        let leave = request(&node, "OPTIONS", path, &format!("Host: localhost\r\n{asks_leave}"));
        assert!(leave.status == 403 && leave.header("access-control-allow-headers").is_none(), "{path}");
        assert_eq!(get(&node, path).status, 200, "{path}");
    }
}

#[test]
fn metrics_are_for_programs_by_any_name_and_for_browsers_by_ours() {
    for config in ["", "console = false\n"] {
        let node = Node::start(&format!("{config}console_names = ['node7.example']\n"));
        let status = |headers: &str| {
            let [metrics, health] = ["/metrics", "/healthz"].map(|path| request(&node, "GET", path, headers).status);
            assert_eq!(metrics, health, "{headers}");
            assert_eq!(request(&node, "GET", "/livez", headers).status, 200, "that it lives is no secret");
            metrics
        };
        let browser = "User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept-Language: en\r\n";
        for agent in ["", "User-Agent: Prometheus/3.5.0\r\nAccept: text/plain\r\n"] {
            assert_eq!(status(&format!("Host: prometheus-calls-it-so:9420\r\n{agent}")), 200, "{agent}");
        }
        for host in ["localhost", "127.0.0.1:9420", "node7.example"] {
            assert_eq!(status(&format!("Host: {host}\r\n{browser}")), 200, "{host}");
            let same = format!("Host: {host}\r\n{browser}Origin: http://{host}\r\nSec-Fetch-Site: same-origin\r\n");
            assert_eq!(status(&same), 200, "{host}");
        }
        for sign in
            [browser, "Accept-Language: en\r\n", "Sec-Fetch-Site: same-origin\r\n", "Referer: http://evil.example/\r\n"]
        {
            assert_eq!(status(&format!("Host: evil.example:9420\r\n{sign}")), 421, "a rebound name, told by {sign}");
        }
        for foreign in ["Origin: http://evil.example\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
            assert_eq!(status(&format!("Host: localhost\r\n{foreign}")), 403, "{foreign}");
        }
        let link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n";
        assert_eq!(status(&format!("Host: localhost\r\n{browser}{link}")), 200, "by a link");
    }
}

#[test]
fn a_console_can_be_switched_off_and_its_names_are_checked() {
    let node = Node::start("console = false\n");
    assert_eq!(
        [get(&node, "/").status, get(&node, "/console/sample").status, get(&node, "/metrics").status],
        [404, 404, 200]
    );
    assert_eq!(node.status()["console"], Value::Null);
    let wrong = node.path("wrong.toml");
    std::fs::write(&wrong, "[node]\nconsole_names = ['http://node7/']\n").unwrap();
    let run = remuda(&["config", "check", wrong.to_str().unwrap()]);
    assert!(run.code != 0 && (run.err + &run.out).contains("names alone"));
}

#[test]
fn samples_show_the_load_and_follow_one_another() {
    let node = node(&format!("{POOL}[[volume]]\nname = 'c'\npool = 'hot'\nsize = '1GiB'\n"));
    node.ok(&["subsystem", "add-namespace", NQN, "c"]);
    let first = get(&node, "/console/sample").json();
    assert_eq!((&first["pools"]["rows"][0]["name"], &first["volumes_rates"]["writes"]), (&"hot".into(), &0.0.into()));
    let load = ["--rw", "randwrite", "--range", "16MiB", "--time", "3s", "--warmup", "0s"];
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| bench(&node, &load));
        let mut after = first["seq"].as_u64().unwrap();
        let sample = loop {
            assert!(!loading.is_finished(), "no sample of three seconds showed the load");
            let sample = get(&node, &format!("/console/sample?after={after}")).json();
            assert!(sample["seq"].as_u64().unwrap() > after, "{sample}");
            after = sample["seq"].as_u64().unwrap();
            if sample["volumes_rates"]["write"]["p999"].as_u64() > Some(0) {
                break sample;
            }
        };
        let volume = &sample["volumes"]["rows"][0];
        assert!(volume["rates"]["write_bytes"].as_f64() > Some(0.0), "{volume}");
        assert_eq!((&volume["place"], &volume["exports"][0]), (&"pool hot".into(), &format!("{NQN}/1").into()));
        assert_eq!(sample["subsystems"]["rows"][0]["connected"], 1, "{sample}");
        assert!(sample["reactors"][0]["busy"].as_f64() > Some(0.0), "{sample}");
        assert_eq!(loading.join().unwrap().code, 0);
        assert_eq!(get(&node, "/console/history").json().as_array().unwrap().len() as u64, after);
        assert!(get(&node, "/console/sample?after=1000000").json()["seq"].as_u64().unwrap() > 0, "as after a restart");
    });
}

#[test]
fn markup_in_a_problem_stays_a_string_of_json() {
    let mut node = Node::start("");
    let hostile = node.path("<img src=x onerror=alert(1)>\"&.img");
    let path = hostile.to_str().unwrap();
    node.ok(&["device", "create", "bad", "--kind", "file", &format!("path={path}"), "size=1MiB"]);
    node.kill();
    std::fs::remove_file(&hostile).unwrap();
    node.restart();
    let answer = get(&node, "/console/sample");
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    let sample = answer.json();
    let problem = sample["problems"]["rows"][0].as_str().unwrap();
    assert!(problem.contains("<img src=x onerror=alert(1)>\"&.img"), "{problem}");
    assert!(sample["log"].as_array().unwrap().iter().any(|line| line["level"] == "warn"), "{sample}");
}

/// Names of metrics in a text of queries.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let word = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    text.split(word).filter(|name| name.starts_with("remuda_")).collect()
}

#[test]
fn the_board_and_the_alerts_name_metrics_that_are_exported_and_the_page_explains_each() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let node = node(POOL);
    let metrics = get(&node, "/metrics").body;
    let mut exported = BTreeSet::new();
    for line in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let parts: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        exported.extend(parts.iter().map(|part| format!("{name}{part}")));
        assert!(read("docs/operating/watching.md").contains(&format!("`{name}`")), "{name} is not explained");
    }
    let board: Value = serde_json::from_str(&read("dist/grafana/remuda.json")).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let queries = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries: Vec<&str> = queries.map(|target| target["expr"].as_str().unwrap()).collect();
    let variables = board["templating"]["list"].as_array().unwrap().iter().map(|one| one["query"].to_string());
    let rules = read("dist/prometheus/remuda.rules.yml");
    assert!(queries.len() > 15 && rules.matches("alert:").count() > 8);
    for text in queries.iter().map(ToString::to_string).chain(variables).chain([rules.clone()]) {
        let count = |c| text.matches(c).count();
        assert!(count('(') == count(')') && count('{') == count('}') && count('[') == count(']'), "{text}");
        for name in metrics_in(&text) {
            assert!(exported.contains(name), "{name} is not exported: {text}");
        }
    }
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "panels have ids of their own");
    for alert in rules.split("- alert:").skip(1) {
        for part in ["expr:", "for:", "severity:", "summary:", "description:"] {
            assert!(alert.contains(part), "{part} is missing: {alert}");
        }
    }
}
