//! Features of one controller: their values and the rules for setting them (Base 2.0, section 5.27.1).

use super::model::Subsystem;
use crate::spec::Status;
use crate::spec::feature::{CAPABILITY_CHANGEABLE, CAPABILITY_NAMESPACE_SPECIFIC, Feature, QueueCounts, event};

/// Composite temperature above which a warning is due, in kelvin: 70 degrees (WCTEMP).
pub(super) const WARNING_TEMPERATURE: u16 = 343;
/// Composite temperature that is critical, in kelvin: 80 degrees (CCTEMP).
pub(super) const CRITICAL_TEMPERATURE: u16 = 353;

/// Bytes of the Host Behavior Support structure.
pub(super) const HOST_BEHAVIOR_LEN: usize = 512;

/// Values in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features {
    io_queues_max: u16,
    queues: QueueCounts,
    pub(super) event_mask: u32,
    pub(super) write_cache: bool,
    pub(super) host_behavior: [u8; 4],
    arbitration: u32,
    power_management: u32,
    error_recovery: u32,
    write_atomicity: u32,
    over_temperature: u16,
    under_temperature: u16,
}

impl Features {
    pub(super) fn new(io_queues_max: u16) -> Self {
        let queues = u32::from(io_queues_max);
        Features {
            io_queues_max,
            queues: QueueCounts { submission: queues, completion: queues },
            event_mask: 0,
            write_cache: true,
            host_behavior: [0; 4],
            arbitration: 0,
            power_management: 0,
            error_recovery: 0,
            write_atomicity: 0,
            over_temperature: WARNING_TEMPERATURE,
            under_temperature: 0,
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Features::new(self.io_queues_max);
    }

    /// I/O queues that the host may connect.
    pub(super) fn queue_count(&self) -> u16 {
        self.queues.submission.min(self.queues.completion) as u16
    }

    /// The value of a feature whose value is one dword. `parameter` is CDW11.
    pub(super) fn get(&self, feature: Feature, parameter: u32, subsystem: &Subsystem) -> Result<u32, Status> {
        Ok(match feature {
            Feature::Arbitration => self.arbitration,
            Feature::PowerManagement => self.power_management,
            Feature::TemperatureThreshold => match threshold(parameter)? {
                (true, _) => return Err(Status::INVALID_FIELD), // Select 1111b only sets.
                (false, true) => u32::from(self.over_temperature),
                (false, false) => u32::from(self.under_temperature),
            },
            Feature::ErrorRecovery => self.error_recovery,
            Feature::VolatileWriteCache if subsystem.config().volatile_cache => u32::from(self.write_cache),
            Feature::NumberOfQueues => self.queues.to_wire(),
            Feature::WriteAtomicity => self.write_atomicity,
            Feature::AsyncEventConfiguration => self.event_mask,
            Feature::CommandSetProfile => 0,
            _ => return Err(Status::INVALID_FIELD),
        })
    }

    /// Sets such a feature; returns dword 0 of the answer.
    pub(super) fn set(
        &mut self,
        feature: Feature,
        value: u32,
        events_supported: u32,
        has_queues: bool,
        subsystem: &Subsystem,
    ) -> Result<u32, Status> {
        match feature {
            Feature::Arbitration => self.arbitration = value,
            Feature::PowerManagement if value & 0x1f == 0 => self.power_management = value & 0xff,
            Feature::TemperatureThreshold => match threshold(value)? {
                (_, true) => self.over_temperature = value as u16,
                (_, false) => self.under_temperature = value as u16,
            },
            // Bit 16, DULBE: reads of deallocated blocks never fail here.
            Feature::ErrorRecovery if value & 1 << 16 == 0 => self.error_recovery = value & 0xffff,
            Feature::VolatileWriteCache if subsystem.config().volatile_cache => self.write_cache = value & 1 != 0,
            Feature::NumberOfQueues => {
                if has_queues {
                    return Err(Status::COMMAND_SEQUENCE_ERROR);
                }
                let wanted = QueueCounts::from_wire(value).ok_or(Status::INVALID_FIELD)?;
                let max = u32::from(self.io_queues_max);
                self.queues =
                    QueueCounts { submission: wanted.submission.min(max), completion: wanted.completion.min(max) };
                return Ok(self.queues.to_wire());
            }
            Feature::WriteAtomicity => self.write_atomicity = value & 1,
            Feature::AsyncEventConfiguration => self.event_mask = value & (events_supported | event::SMART_WARNINGS),
            Feature::CommandSetProfile if value & 0x1ff == 0 => {}
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(0)
    }
}

/// Which threshold CDW11 selects: (all sensors, over rather than under). Only the composite temperature exists.
fn threshold(parameter: u32) -> Result<(bool, bool), Status> {
    let all = match parameter >> 16 & 0xf {
        0 => false,
        0xf => true,
        _ => return Err(Status::INVALID_FIELD),
    };
    match parameter >> 20 & 3 {
        0 => Ok((all, true)),
        1 => Ok((all, false)),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Features that a controller has at all.
pub(super) fn is_supported(feature: Feature, is_discovery: bool, volatile_cache: bool) -> bool {
    match feature {
        Feature::AsyncEventConfiguration | Feature::KeepAliveTimer => true,
        Feature::Arbitration
        | Feature::PowerManagement
        | Feature::TemperatureThreshold
        | Feature::ErrorRecovery
        | Feature::NumberOfQueues
        | Feature::WriteAtomicity
        | Feature::Timestamp
        | Feature::HostBehaviorSupport
        | Feature::CommandSetProfile
        | Feature::HostIdentifier
        | Feature::ReservationMask
        | Feature::ReservationPersistence => !is_discovery,
        Feature::VolatileWriteCache => !is_discovery && volatile_cache,
        _ => false,
    }
}

/// What may be done with a feature (Base 2.0, section 5.15). Nothing is saved over resets.
pub(super) fn capabilities(feature: Feature) -> u32 {
    match feature {
        Feature::HostIdentifier => 0,
        Feature::ErrorRecovery | Feature::ReservationMask | Feature::ReservationPersistence => {
            CAPABILITY_CHANGEABLE | CAPABILITY_NAMESPACE_SPECIFIC
        }
        _ => CAPABILITY_CHANGEABLE,
    }
}
