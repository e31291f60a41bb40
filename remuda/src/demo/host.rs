//! The host's side of the demo: operations handed to a block device on a reactor, answers collected here.

use crate::cli::exit::{Exit, Failure};
use crate::config::{DeviceDef, DeviceParams};
use crate::node::Refusal;
use crate::node::reactors::on_reactor_async;
use base::Histogram;
use bdev::{BlockDevice, Channel, Done, Io, Lba, Op, Status};
use reactor::{BUF_BYTES_MAX, Reactor, ReactorHandle, SgList};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tokio::sync::mpsc;

/// Something to do.
pub struct Command {
    /// Comes back with the answer.
    pub id: u64,
    /// Read, write or flush.
    pub op: Op,
    /// First block.
    pub lba: u64,
    /// Data of a write; room for a read.
    pub data: Vec<u8>,
}

/// How it went.
pub struct Answer {
    /// The command's.
    pub id: u64,
    /// What was done.
    pub op: Op,
    /// How it ended.
    pub status: Status,
    /// Data of a read.
    pub data: Vec<u8>,
    /// Time it took, ns.
    pub latency_ns: u64,
}

/// An attached device.
pub struct Host {
    commands: mpsc::UnboundedSender<Command>,
    answers: Receiver<Answer>,
    in_flight: usize,
    /// Bytes per block.
    pub block_size: u64,
    /// Blocks of the device.
    pub blocks: u64,
    /// Latencies of reads and writes since [`take_latencies`](Self::take_latencies).
    latencies: Histogram,
}

/// Longest wait for an answer of a healthy node.
const ANSWER_MAX: Duration = Duration::from_secs(30);

impl Host {
    /// Opens a channel of `device` on a reactor.
    pub async fn attach(reactor: &ReactorHandle, device: Arc<dyn BlockDevice>) -> Result<Host, Refusal> {
        let (commands, queue) = mpsc::unbounded_channel();
        let (reply, answers) = channel();
        let (block_size, blocks) = (device.info().block_size as u64, device.info().blocks);
        on_reactor_async(reactor, move |reactor| async move {
            let channel = device.open_channel(&reactor)?;
            let worker = reactor.clone();
            reactor.spawn(work(worker, channel, block_size as usize, queue, reply));
            Ok(())
        })
        .await?
        .map_err(|error: bdev::DeviceError| Refusal::failed("remote volume", error, ""))?;
        Ok(Host { commands, answers, in_flight: 0, block_size, blocks, latencies: Histogram::default() })
    }

    /// Hands over an operation.
    pub fn submit(&mut self, command: Command) {
        // A worker that is gone shows as a missing answer.
        let _ = self.commands.send(command);
        self.in_flight += 1;
    }

    /// Operations without an answer.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The next answer.
    pub fn answer(&mut self) -> Result<Answer, Failure> {
        match self.answer_within(ANSWER_MAX) {
            Some(answer) => Ok(answer),
            None => Err(Failure::new(Exit::Failed, format!("no answer from the node within {ANSWER_MAX:?}"))),
        }
    }

    /// The next answer, if it comes in time.
    pub fn answer_within(&mut self, limit: Duration) -> Option<Answer> {
        match self.answers.recv_timeout(limit) {
            Ok(answer) => {
                self.in_flight -= 1;
                if answer.op != Op::Flush && answer.status.is_ok() {
                    self.latencies.record(answer.latency_ns);
                }
                Some(answer)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Makes everything answered durable.
    pub fn flush(&mut self) -> Result<(), Failure> {
        assert_eq!(self.in_flight, 0, "a flush covers what was answered before it");
        self.submit(Command { id: 0, op: Op::Flush, lba: 0, data: Vec::new() });
        let answer = self.answer()?;
        check(&answer)
    }

    /// Latencies so far, which start anew.
    pub fn take_latencies(&mut self) -> Histogram {
        std::mem::take(&mut self.latencies)
    }
}

/// The first namespace of a subsystem of a node on this machine.
pub fn remote_volume(name: &str, port: u16, nqn: &str) -> DeviceDef {
    let params = DeviceParams::Nvmf {
        address: format!("127.0.0.1:{port}"),
        paths: Vec::new(),
        nqn: nqn.to_string(),
        nsid: 1,
        host_nqn: None,
        tls_key: None,
        dhchap_key: None,
        dhchap_ctrl_key: None,
        queues: None,
        queue_depth: 128,
        header_digest: false,
        data_digest: false,
        exclusive: true,
        loss_timeout_ns: 5_000_000_000,
    };
    DeviceDef { name: name.to_string(), params }
}

/// An answer that should be good.
pub fn check(answer: &Answer) -> Result<(), Failure> {
    let failed = |status| Failure::new(Exit::Failed, format!("{} failed: {status}", answer.op.name()));
    answer.status.check().map_err(failed)
}

async fn work(
    reactor: Rc<Reactor>,
    channel: Rc<dyn Channel>,
    block_size: usize,
    mut queue: mpsc::UnboundedReceiver<Command>,
    reply: Sender<Answer>,
) {
    while let Some(command) = queue.recv().await {
        let (task, channel, reply) = (reactor.clone(), channel.clone(), reply.clone());
        reactor.spawn(async move {
            let answer = perform(&task, &*channel, block_size, command).await;
            // The asker may have gone away.
            let _ = reply.send(answer);
        });
    }
}

async fn perform(reactor: &Rc<Reactor>, channel: &dyn Channel, block_size: usize, command: Command) -> Answer {
    let Command { id, op, lba, mut data } = command;
    let mut bufs = SgList::new();
    for piece in data.chunks(BUF_BYTES_MAX) {
        let mut buf = reactor.pool().alloc(piece.len()).await;
        if op == Op::Write {
            buf.as_mut_slice().copy_from_slice(piece);
        }
        bufs.push(buf);
    }
    let nblocks = (data.len() / block_size) as u32;
    let began_ns = reactor.clock_ns();
    let Done { io, status } = channel.submit(Io { bufs, ..Io::new(op, Lba(lba), nblocks) }).await;
    let latency_ns = reactor.clock_ns().saturating_sub(began_ns);
    if op == Op::Read && status.is_ok() {
        reactor::buf::sg_copy_to(&io.bufs, &mut data);
    }
    Answer { id, op, status, data, latency_ns }
}
