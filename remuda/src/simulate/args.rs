//! What `remuda pool simulate` is asked for, and what of that makes no sense together.

use super::drive::DriveKind;
use super::trace::{self, Event, Format};
use crate::cli::exit::{Exit, Failure};
use crate::config::section::parse_duration_ns;
use base::ByteSize;
use bdev::flash_cache::workload;
use clap::Args;
use engine::{Shape, layout};
use std::path::PathBuf;

const CACHES_MAX: usize = 16;
const OVERPROVISION: u8 = layout::OVERPROVISION_DEFAULT;
const DRIVE_SPARE: u8 = 10;
const DRIVE_UNIT: ByteSize = ByteSize(64 << 10);

/// How blocks are placed: the words of `pool create`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PoolShape {
    /// In place, behind a log
    Hot,
    /// In long runs alone, for QLC
    Shaped,
    /// In place on slow disks, whose reads are cached on flash
    Warm,
}

impl PoolShape {
    pub fn name(self) -> &'static str {
        match self {
            PoolShape::Hot => "hot",
            PoolShape::Shaped => "shaped",
            PoolShape::Warm => "warm",
        }
    }

    /// Of the engine's: a warm pool is a hot one on a flash cache.
    pub fn of_engine(self) -> Shape {
        if self == PoolShape::Shaped { Shape::Shaped } else { Shape::Hot }
    }
}

#[derive(Args)]
pub struct SimulateArgs {
    /// The trace: a fio iolog (write_iolog=FILE), what blkparse prints, or a binary blktrace (merged by blkparse -d); - is standard input
    #[arg(long, value_name = "FILE")]
    pub(super) trace: PathBuf,
    /// What the trace is written in
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    pub(super) format: Format,
    /// How the pool would place blocks
    #[arg(long, value_enum, default_value_t = PoolShape::Shaped)]
    pub(super) shape: PoolShape,
    /// Capacity device
    #[arg(long, value_name = "SIZE")]
    pub(super) capacity: ByteSize,
    /// Log device; of a shaped pool it also holds the index, 0.4 % of the capacity
    #[arg(long, value_name = "SIZE")]
    pub(super) log: ByteSize,
    /// Shaped: percent of the capacity that volumes do not get [default: 15]
    #[arg(long, value_name = "PERCENT")]
    overprovision: Option<u8>,
    /// Shaped: writes to the capacity device are multiples of this [default: 64KiB]
    #[arg(long, value_name = "SIZE")]
    pub(super) write_unit: Option<ByteSize>,
    /// Shaped: bytes that are written and collected as one; of a zoned drive its zones [default: by size, zones 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub(super) band: Option<ByteSize>,
    /// Percent of the volumes' space that holds data before the trace begins
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(super) filled: u8,
    /// Shaped: as `reinsertion` of a pool: bytes, of each hundred that are written, that may go to the log once more; a pool of which
    /// nothing else was asked does it only while writers wait for its drive, which a trace does not tell [default: 0]
    #[arg(long, value_name = "PERCENT",
        value_parser = clap::value_parser!(u32).range(0..=i64::from(engine::REINSERTION_PERCENT_MAX)))]
    reinsertion: Option<u32>,
    /// Warm: size of the flash device, and of others to compare it with [default of those: parts of it]. Else: sizes of a read cache
    /// in front of the pool to try, such as a guest's [default: parts of the capacity]
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub(super) cache: Vec<ByteSize>,
    /// Warm: most bytes written to that flash device in a day
    #[arg(long, value_name = "SIZE")]
    write_budget: Option<ByteSize>,
    /// Warm: bytes that may be written to it in its life, for the forecast
    #[arg(long, value_name = "SIZE")]
    pub(super) endurance: Option<ByteSize>,
    /// Warm: how long the load took, such as 2h, where the trace does not say when its accesses were: they are spread evenly
    #[arg(long, value_name = "TIME", value_parser = parse_duration_ns)]
    pub(super) duration: Option<u64>,
    /// What the capacity device is [default: of a warm pool disk, else conventional]
    #[arg(long, value_enum)]
    drive: Option<DriveKind>,
    /// Percent of flash that the drive has beyond its capacity [default: 10]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    drive_spare: Option<u8>,
    /// Indirection unit of the drive: 4KiB to 64KiB [default: 64KiB]
    #[arg(long, value_name = "SIZE")]
    drive_unit: Option<ByteSize>,
    /// Times that the trace is played at most, of which the last is measured
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) passes: u32,
    /// Which events of a blktrace count [default: Q]
    #[arg(long, value_enum)]
    pub(super) event: Option<Event>,
    /// Device in a blktrace, such as 8,0, where there are several
    #[arg(long, value_name = "MAJOR,MINOR")]
    pub(super) device: Option<String>,
}

pub(super) fn usage(text: impl Into<String>) -> Failure {
    Failure::new(Exit::Usage, text)
}

impl SimulateArgs {
    /// Refuses what cannot be, and what would be passed over in silence.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let unit = self.drive_unit();
        if ![4, 8, 16, 32, 64].contains(&(unit.0 >> 10)) || !unit.0.is_power_of_two() {
            return Err(usage(format!("--drive-unit {unit}: expected 4KiB, 8KiB, 16KiB, 32KiB or 64KiB")));
        }
        if self.cache.len() > CACHES_MAX {
            return Err(usage(format!("--cache: at most {CACHES_MAX} sizes")));
        }
        let of_bands = [
            ("--overprovision", self.overprovision.is_some()),
            ("--write-unit", self.write_unit.is_some()),
            ("--band", self.band.is_some()),
            ("--reinsertion", self.reinsertion.is_some()),
        ];
        let of_flash_cache = [
            ("--write-budget", self.write_budget.is_some()),
            ("--endurance", self.endurance.is_some()),
            ("--duration", self.duration.is_some()),
        ];
        let of_drive = [("--drive-spare", self.drive_spare.is_some()), ("--drive-unit", self.drive_unit.is_some())];
        let given = |options: &[(&'static str, bool)]| options.iter().find(|(_, given)| *given).map(|(name, _)| *name);
        let shape = self.shape.name();
        if let Some(name) = given(&of_bands).filter(|_| self.shape != PoolShape::Shaped) {
            return Err(usage(format!("{name} is for shaped pools, and this one is {shape}: leave it out")));
        }
        if let Some(name) = given(&of_flash_cache).filter(|_| self.shape != PoolShape::Warm) {
            return Err(usage(format!("{name} is for warm pools; add --shape warm")));
        }
        self.check_drive()?;
        let drive = self.drive();
        if let Some(name) = given(&of_drive) {
            match drive {
                DriveKind::Conventional | DriveKind::Streams => {}
                DriveKind::Zoned => {
                    return Err(usage(format!(
                        "{name}: a zoned drive has neither a map nor spare flash: leave it out"
                    )));
                }
                DriveKind::Disk => return Err(usage(format!("{name}: disks have no flash: leave it out"))),
            }
        }
        if self.shape == PoolShape::Warm {
            return self.check_warm();
        }
        Ok(())
    }

    /// Whether a pool of this shape runs on such a drive, and differently from on another.
    fn check_drive(&self) -> Result<(), Failure> {
        let (shape, drive) = (self.shape.name(), self.drive());
        let reason = match (self.shape, drive) {
            (PoolShape::Shaped, DriveKind::Disk) => {
                "a shaped pool writes in long runs for flash and zones; disks are for --shape hot or warm, shingled ones are zoned".to_string()
            }
            (PoolShape::Hot | PoolShape::Warm, DriveKind::Zoned) => {
                format!("zones are written in order alone, and a {shape} pool writes in place; add --shape shaped")
            }
            (PoolShape::Warm, DriveKind::Conventional | DriveKind::Streams) => {
                "a warm pool is for disks, and a flash cache in front of flash would be in vain; leave it out, or use --shape hot".to_string()
            }
            (PoolShape::Hot, DriveKind::Streams) => {
                "a hot pool writes in place and uses no streams, so such a drive would do what a conventional one does; leave it out".to_string()
            }
            _ => return Ok(()),
        };
        Err(usage(format!("--drive {}: {reason}", drive.name())))
    }

    fn check_warm(&self) -> Result<(), Failure> {
        let (Some(_), Some(budget)) = (self.cache.first(), self.write_budget) else {
            return Err(usage(
                "a warm pool needs --cache SIZE (its flash device) and --write-budget SIZE (bytes per day)",
            ));
        };
        self.cache.iter().try_for_each(|flash| {
            workload::check_plan(flash.0, budget.0).map_err(|reason| {
                usage(format!("there can be no such flash cache (--cache {flash}, --write-budget {budget}): {reason}"))
            })
        })
    }

    pub(super) fn overprovision(&self) -> u8 {
        self.overprovision.unwrap_or(OVERPROVISION)
    }

    pub(super) fn reinsertion(&self) -> u32 {
        self.reinsertion.unwrap_or(0)
    }

    /// What the trace is called.
    pub(super) fn trace_name(&self) -> String {
        trace::name(&self.trace).display().to_string()
    }

    pub(super) fn drive(&self) -> DriveKind {
        let usual = if self.shape == PoolShape::Warm { DriveKind::Disk } else { DriveKind::Conventional };
        self.drive.unwrap_or(usual)
    }

    pub(super) fn drive_spare(&self) -> u8 {
        self.drive_spare.unwrap_or(DRIVE_SPARE)
    }

    pub(super) fn drive_unit(&self) -> ByteSize {
        self.drive_unit.unwrap_or(DRIVE_UNIT)
    }

    /// Of a warm pool: bytes a day.
    pub(super) fn write_budget(&self) -> u64 {
        self.write_budget.map_or(u64::MAX, |budget| budget.0)
    }
}
