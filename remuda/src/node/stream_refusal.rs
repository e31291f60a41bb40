//! Why a stream was not taken, as a refusal: each with what to do about it.

use super::pools::{object, pool_refused};
use super::refusal::{Refusal, RefusalKind};
use engine::StreamError;

/// Of an import into a volume of a pool, one of whose devices `refuses` writes or not.
pub(super) fn import_refused(pool: &str, volume: &str, refuses: bool, error: StreamError) -> Refusal {
    let of_volume = format!("volume '{volume}'");
    let of_stream = format!("the stream for volume '{volume}'");
    let cause = error.to_string();
    let (kind, object, next) = match error {
        StreamError::Pool(error) => {
            return pool_refused(pool, error, "no snapshot was made; put that right, and send the stream again");
        }
        StreamError::NotUndone { .. } => {
            let next = "see the node's log; 'remuda snapshot rollback' or 'remuda volume delete' put it right";
            (RefusalKind::Failed, of_volume, next.to_string())
        }
        StreamError::Cut { .. } | StreamError::Damaged { .. } => {
            let next = "no snapshot was made; send it again, from a copy that 'remuda snapshot verify' finds whole";
            (RefusalKind::Failed, of_stream, next.to_string())
        }
        StreamError::Newer(_) => {
            let next = "no snapshot was made; import it with a program as new as the one that wrote it";
            (RefusalKind::Failed, of_stream, next.to_string())
        }
        StreamError::Source(_)
        | StreamError::NobodyTakes
        | StreamError::NoSnapshot(_)
        | StreamError::NotRead { .. } => {
            let next = "no snapshot was made; see to that where it was exported ('remuda pool scrub' there finds what cannot be read), \
                        and export it again";
            (RefusalKind::Failed, of_stream, next.to_string())
        }
        StreamError::BadName { name, .. } => {
            let next = "give the copy another name: remuda snapshot import VOLUME@SNAPSHOT";
            (RefusalKind::Invalid, format!("snapshot '{name}'"), next.to_string())
        }
        StreamError::SnapshotExists(snapshot) => {
            let next = format!(
                "give the new one another name: remuda snapshot import {volume}@NAME; or delete that one first: remuda snapshot \
                 delete {snapshot}"
            );
            (RefusalKind::Conflict, of_volume, next)
        }
        StreamError::VolumeExists { .. } => {
            let next = format!("give that another name: remuda snapshot import NAME --pool {pool}");
            (RefusalKind::Conflict, of_volume, next)
        }
        StreamError::NoVolume { since, .. } => {
            let next = format!("import '{since}' first, which makes it, or name the volume that has a copy of that");
            (RefusalKind::NotFound, of_volume, next)
        }
        StreamError::NoBase { since, .. } => {
            let next = format!("import '{since}' into it first, or name the volume that has a copy of that");
            (RefusalKind::Conflict, of_volume, next)
        }
        StreamError::BlockSize { of, .. } => {
            let next = format!("export all of '{of}', without --since, and import that into a new volume");
            (RefusalKind::Conflict, of_volume, next)
        }
        StreamError::Changed { since, .. } => {
            let next = format!(
                "give up what was written since, by hosts or by an import that was cut off, with --roll-back; or import into a clone: remuda \
                 volume clone {since} NAME"
            );
            (RefusalKind::Conflict, of_volume, next)
        }
        StreamError::NotWritten { .. } if refuses => {
            let next = format!(
                "no snapshot was made; a device of the pool refuses writes, as a sparse file does on a full disk: see 'remuda pool \
                 status {pool}', make room on the disk below it, and send it again"
            );
            (RefusalKind::Failed, of_volume, next)
        }
        StreamError::NotWritten { status, .. } if RefusalKind::of(status) == RefusalKind::NoSpace => {
            let next = format!(
                "no snapshot was made; delete or trim volumes, delete snapshots, or let the capacity device grow ('remuda pool grow \
                 {pool}'), and send it again"
            );
            (RefusalKind::NoSpace, of_volume, next)
        }
        StreamError::NotWritten { .. } => {
            let next = format!("no snapshot was made; see 'remuda pool status {pool}', and send it again");
            (RefusalKind::Failed, of_volume, next)
        }
        StreamError::NoMemory(_) => {
            let next =
                "no snapshot was made; send it again when less is going on, or give the node more 'buffer_memory'";
            (RefusalKind::Failed, of_stream, next.to_string())
        }
    };
    Refusal::new(kind, object, format!("in {}: {cause}", self::object(pool)), next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bdev::Status;

    #[test]
    fn each_says_what_to_do_and_is_of_its_kind() {
        let (volume, since, of) = ("v".to_string(), "v@one".to_string(), "v@two".to_string());
        let errors = [
            (StreamError::Cut { bytes: 7 }, RefusalKind::Failed, "remuda snapshot verify"),
            (StreamError::Newer(1), RefusalKind::Failed, "a program as new"),
            (StreamError::Source("gone".into()), RefusalKind::Failed, "export it again"),
            (StreamError::BadName { name: "v@".into(), reason: "no".into() }, RefusalKind::Invalid, "another name"),
            (StreamError::SnapshotExists(of.clone()), RefusalKind::Conflict, "remuda snapshot delete v@two"),
            (StreamError::VolumeExists { volume: volume.clone(), of: of.clone() }, RefusalKind::Conflict, "--pool hot"),
            (
                StreamError::NoVolume { volume: volume.clone(), since: since.clone() },
                RefusalKind::NotFound,
                "'v@one' first",
            ),
            (
                StreamError::NoBase { volume: volume.clone(), since: since.clone() },
                RefusalKind::Conflict,
                "'v@one' into it",
            ),
            (StreamError::BlockSize { volume: volume.clone(), of }, RefusalKind::Conflict, "without --since"),
            (StreamError::Changed { volume: volume.clone(), since }, RefusalKind::Conflict, "--roll-back"),
            (
                StreamError::NotWritten { volume: volume.clone(), status: Status::NoSpace },
                RefusalKind::NoSpace,
                "pool grow hot",
            ),
            (
                StreamError::NotWritten { volume, status: Status::WriteError },
                RefusalKind::Failed,
                "remuda pool status hot",
            ),
            (StreamError::NoMemory(Status::NoSpace), RefusalKind::Failed, "buffer_memory"),
        ];
        for (error, kind, next) in errors {
            let refusal = import_refused("hot", "v", false, error);
            assert!(refusal.kind == kind && refusal.next.contains(next), "{refusal:?}");
            assert!(refusal.cause.contains("pool 'hot'") && refusal.object.contains("'v"), "{refusal:?}");
        }
    }

    #[test]
    fn where_a_device_refuses_writes_it_is_not_for_volumes_to_make_room() {
        for status in [Status::NoSpace, Status::WriteError] {
            let refusal = import_refused("hot", "v", true, StreamError::NotWritten { volume: "v".to_string(), status });
            assert_eq!(refusal.kind, RefusalKind::Failed);
            assert!(refusal.next.contains("disk below") && !refusal.next.contains("grow"), "{refusal:?}");
        }
    }
}
