//! The log device of a pool, whichever way it is appended to: its superblocks, and a shard's part of it.

use crate::error::{Grounds, PoolError};
use crate::format::superblock::LogKind;
use crate::log::Medium;
use crate::meter::{Meter, Metered};
use crate::units::BLOCK_BYTES;
use base::Errno;
use bdev::{BlockDevice, Channel, DeviceInfo, Done, Io, Op, Status};
use reactor::driver::PmemId;
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;

/// Where a pool's log lives.
#[derive(Clone)]
pub enum LogDevice {
    /// A block device: one write per group of records.
    Block(Arc<dyn BlockDevice>),
    /// Persistent memory: one store and fence per record.
    Mapped {
        /// A DAX file or device (or, with `volatile_allowed`, any file).
        path: String,
        /// Bytes to use; it must have as many.
        bytes: u64,
        /// Take memory whose fenced stores may not survive power loss: for tests and measurements.
        volatile_allowed: bool,
    },
}

impl LogDevice {
    /// How records are appended to it.
    pub fn kind(&self) -> LogKind {
        match self {
            LogDevice::Block(_) => LogKind::Block,
            LogDevice::Mapped { .. } => LogKind::Mapped,
        }
    }

    /// Its name or path.
    pub fn name(&self) -> &str {
        match self {
            LogDevice::Block(device) => device.name(),
            LogDevice::Mapped { path, .. } => path,
        }
    }

    /// The same, taken whether it survives a power loss or not: to be looked at, or wiped.
    pub(crate) fn even_volatile(&self) -> LogDevice {
        match self {
            LogDevice::Mapped { path, bytes, .. } => {
                LogDevice::Mapped { path: path.clone(), bytes: *bytes, volatile_allowed: true }
            }
            block => block.clone(),
        }
    }

    /// Size in blocks of 4 KiB.
    pub fn blocks(&self) -> u64 {
        let bytes = match self {
            LogDevice::Block(device) => device.info().bytes(),
            LogDevice::Mapped { bytes, .. } => *bytes,
        };
        bytes / BLOCK_BYTES as u64
    }

    fn refuse(&self, pool: &str, reason: String) -> PoolError {
        PoolError::Refused {
            pool: pool.to_string(),
            grounds: Grounds::Devices,
            reason: format!("log '{}': {reason}", self.name()),
        }
    }

    /// Opens it on a reactor.
    pub(crate) fn open(&self, reactor: &Rc<Reactor>, pool: &str) -> Result<OpenLog, PoolError> {
        match self {
            LogDevice::Block(device) => {
                let channel = device.open_channel(reactor)?;
                Ok(OpenLog { channel, info: device.info(), mapped: None, durable: true })
            }
            LogDevice::Mapped { path, bytes, volatile_allowed } => {
                let opened = reactor.driver().pmem_open(Some(path), *bytes);
                let (pmem, info) = opened.map_err(|errno| self.refuse(pool, format!("cannot map it: {errno}")))?;
                let mapping = Rc::new(Mapping { reactor: reactor.clone(), pmem });
                if !info.durable && !volatile_allowed {
                    return Err(PoolError::VolatileLog { pool: pool.to_string(), log: path.clone() });
                }
                if info.bytes < *bytes {
                    return Err(self.refuse(pool, format!("has {} bytes, {bytes} are wanted", info.bytes)));
                }
                // What a killed process stored and did not fence is visible, and not durable: as behind a cache.
                let basic = DeviceInfo::basic(BLOCK_BYTES as u32, bytes / BLOCK_BYTES as u64);
                let info_of = DeviceInfo { volatile_cache: true, ..basic };
                let channel = Rc::new(PmemChannel { mapping: mapping.clone(), info: info_of });
                Ok(OpenLog { channel, info: info_of, mapped: Some(mapping), durable: info.durable })
            }
        }
    }
}

/// A log device opened on one reactor.
pub(crate) struct OpenLog {
    /// Its blocks, for what is not a log record.
    pub(crate) channel: Rc<dyn Channel>,
    pub(crate) info: DeviceInfo,
    mapped: Option<Rc<Mapping>>,
    /// Whether what is appended survives a power loss.
    pub(crate) durable: bool,
}

impl OpenLog {
    /// The same, whose writes of blocks are counted.
    pub(crate) fn metered(self, written: &Meter) -> OpenLog {
        OpenLog { channel: Metered::over(self.channel, self.info.block_size, written), ..self }
    }

    /// The part of a shard, whose segments begin at `first_block`; good for as long as this is open.
    pub(crate) fn medium(&self, reactor: &Rc<Reactor>, first_block: u64) -> Medium {
        let reactor = reactor.clone();
        match &self.mapped {
            Some(mapping) => {
                Medium::Mapped { reactor, pmem: mapping.pmem, first_byte: first_block * BLOCK_BYTES as u64 }
            }
            None => Medium::Block { reactor, channel: self.channel.clone(), info: self.info, first_block },
        }
    }
}

/// A mapping of persistent memory; unmapped when nobody has it any more.
struct Mapping {
    reactor: Rc<Reactor>,
    pmem: PmemId,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.reactor.driver().pmem_close(self.pmem);
    }
}

/// Persistent memory as blocks, for the few that are read and written as such.
struct PmemChannel {
    mapping: Rc<Mapping>,
    info: DeviceInfo,
}

impl PmemChannel {
    fn transfer(&self, io: &mut Io) -> Result<(), Errno> {
        let Mapping { reactor, pmem } = &*self.mapping;
        let driver = reactor.driver();
        let mut at = io.lba.0 * BLOCK_BYTES as u64;
        for buf in &mut io.bufs {
            match io.op {
                Op::Read => driver.pmem_read(*pmem, at, buf.as_mut_slice())?,
                _ => driver.pmem_store(*pmem, at, buf.as_slice())?,
            }
            at += buf.len() as u64;
        }
        if io.op != Op::Read {
            driver.pmem_fence(*pmem);
        }
        Ok(())
    }
}

impl Channel for PmemChannel {
    fn submit<'a>(&'a self, mut io: Io) -> IoFuture<'a, Done> {
        let ended = match self.info.check(&io) {
            Ok(()) => self.transfer(&mut io).map_err(|errno| Status::of_errno(errno, io.op)),
            Err(status) => Err(status),
        };
        IoFuture::ready(io.done(ended.err().unwrap_or(Status::Ok)))
    }
}
