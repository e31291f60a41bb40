//! A call that takes long. The node does one thing at a time, and most of what it does asks devices: where one of them does not
//! answer, whoever asks for something else hears so instead of waiting in vain, the log says what is under way, and a signal
//! still ends the node.

use crate::node::{Refusal, RefusalKind, told};
use crate::rpc::server::Request;
use serde_json::Value;
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, UnboundedReceiver};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

/// Whoever waits behind a call that has taken so long is refused, and so is who comes then.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often it is looked whether that is so.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After a signal, a call is waited for so long.
const GRACE: Duration = Duration::from_secs(3);

/// The words for a call: its method, and what it is about.
pub fn words(method: &str, params: Option<&Value>) -> String {
    let name = ["name", "pool", "volume", "device", "names"].iter().find_map(|key| params?.get(key));
    match name {
        Some(Value::String(name)) => format!("'{method}' of '{name}'"),
        Some(names) => format!("'{method}' of {names}"),
        None => format!("'{method}'"),
    }
}

/// Who asks the node for something while it carries out a call.
pub struct Others<'a, S> {
    /// Takes requests in while it is polled.
    pub serve: Pin<&'a mut S>,
    pub requests: &'a mut Receiver<Request>,
    /// Requests that are carried out next.
    pub waiting: &'a mut VecDeque<Request>,
    pub stop: &'a mut UnboundedReceiver<&'static str>,
}

/// How a call has ended.
pub struct Ended<T> {
    /// A refusal where the node stops without it.
    pub answer: Result<T, Refusal>,
    /// Why the node is to stop, if it is.
    pub stop: Option<&'static str>,
}

/// Waits for a call, and hears others meanwhile.
pub async fn carry_out<T, S: Future<Output = ()>>(
    what: &str,
    call: impl Future<Output = Result<T, Refusal>>,
    others: Others<'_, S>,
) -> Ended<T> {
    let Others { mut serve, requests, waiting, stop } = others;
    let mut call = pin!(told(what, call));
    let begun = Instant::now();
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopped: Option<(&'static str, Instant)> = None;
    loop {
        let deadline = stopped.map(|(_, at)| at + GRACE);
        tokio::select! {
            biased;
            answer = &mut call => return Ended { answer, stop: stopped.map(|(cause, _)| cause) },
            cause = stop.recv(), if stopped.is_none() => stopped = Some((cause.unwrap_or("a signal"), Instant::now())),
            () = sleep_until(deadline.unwrap_or(begun)), if deadline.is_some() => {
                let (cause, _) = stopped.expect("there is a deadline");
                tracing::error!("{what} does not end: the node stops without it");
                return Ended { answer: Err(given_up(what, cause)), stop: Some(cause) };
            }
            () = &mut serve, if stopped.is_none() => stopped = Some(("the RPC socket closed", Instant::now())),
            request = requests.recv(), if waiting.len() < requests.max_capacity() && stopped.is_none() => {
                waiting.extend(request);
            }
            _ = looks.tick() => {
                if begun.elapsed() >= PATIENCE {
                    waiting.drain(..).for_each(|request| refuse(request, what, begun.elapsed()));
                }
            }
        }
    }
}

fn refuse(request: Request, what: &str, elapsed: Duration) {
    let cause = format!(
        "it has carried out {what} for {} s, which waits for a device that is slow or does not answer",
        elapsed.as_secs()
    );
    let next = "the node does one thing at a time: try again later, or end it with SIGTERM where the device does not come back; hosts are \
                served meanwhile";
    let _ = request.reply.send(Err(Refusal::conflict("the node", cause, next)));
}

fn given_up(what: &str, cause: &str) -> Refusal {
    let why = format!("it stops ({cause}), and {what} waits for a device that does not answer");
    Refusal::new(RefusalKind::Stopping, "the node", why, "start it again and look what was done, or ask again then")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::audit::Peer;
    use crate::rpc::methods;
    use serde_json::json;
    use tokio::sync::{mpsc, oneshot};

    type Answer = oneshot::Receiver<Result<Value, Refusal>>;

    fn request() -> (Request, Answer) {
        let (reply, answer) = oneshot::channel();
        let method = methods::find("node.status").expect("there is such a method");
        (Request { method, params: None, peer: Peer::default(), transfer: None, reply }, answer)
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_behind_a_call_that_does_not_end_is_told_so_and_a_signal_ends_it() {
        let (sender, mut requests) = mpsc::channel(8);
        let (signal, mut stop) = mpsc::unbounded_channel();
        let mut waiting = VecDeque::new();
        let (early, mut early_answer) = request();
        assert!(sender.send(early).await.is_ok());
        let play = async {
            tokio::time::sleep(PATIENCE / 2).await;
            assert!(early_answer.try_recv().is_err(), "it waits");
            let refusal = early_answer.await.unwrap().unwrap_err().to_string();
            assert!(refusal.contains("'pool.create' of 'warm' for 20 s"), "{refusal}");
            let (late, late_answer) = request();
            assert!(sender.send(late).await.is_ok());
            assert!(late_answer.await.unwrap().is_err());
            signal.send("SIGTERM").unwrap();
        };
        let mut serve = pin!(std::future::pending::<()>());
        let others = Others { serve: serve.as_mut(), requests: &mut requests, waiting: &mut waiting, stop: &mut stop };
        let what = words("pool.create", Some(&json!({ "name": "warm" })));
        let call = std::future::pending::<Result<u32, Refusal>>();
        let (ended, ()) = tokio::join!(carry_out(&what, call, others), play);
        assert_eq!(ended.stop, Some("SIGTERM"));
        let refusal = ended.answer.unwrap_err().to_string();
        assert!(refusal.contains("stops (SIGTERM)") && refusal.contains("'pool.create' of 'warm'"), "{refusal}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_during_a_call_is_carried_out_after_it() {
        let (sender, mut requests) = mpsc::channel(8);
        let (_signal, mut stop) = mpsc::unbounded_channel();
        let mut waiting = VecDeque::new();
        let (one, _answer) = request();
        assert!(sender.send(one).await.is_ok());
        let mut serve = pin!(std::future::pending::<()>());
        let others = Others { serve: serve.as_mut(), requests: &mut requests, waiting: &mut waiting, stop: &mut stop };
        let call = async {
            tokio::time::sleep(PATIENCE / 2).await;
            Ok(7)
        };
        let ended = carry_out("a call", call, others).await;
        assert_eq!((ended.answer.unwrap(), ended.stop), (7, None));
        assert_eq!(waiting.len(), 1);
    }
}
