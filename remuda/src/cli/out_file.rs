//! The file that a command writes its result to: it gets its name when all of it is there, and takes the place of nothing by mistake.
//!
//! What is there and is no regular file (a pipe, a device) is written to as it is, a disk only where a file would be replaced.
//! Symbolic links are followed.

use super::exit::{Exit, Failure};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Links that are followed one after the other at most, as in the kernel.
const LINKS_MAX: usize = 40;

/// What becomes of a regular file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and the command is refused.
    Keep,
    /// The same, of a command that has `--force`.
    KeepUnlessForced,
    /// It is replaced, when the new one is whole.
    Replace,
}

/// Who may read a new file. One that is replaced hands its own mode on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Its owner.
    Owner,
    /// Whom the umask lets.
    Umask,
}

/// Something that is written from its beginning to its end; dropped before [`finish`](Self::finish), it leaves no file.
#[derive(Debug)]
pub struct OutFile {
    /// As it was named.
    path: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Stdout(io::Stdout),
    /// No regular file: written to as it is.
    Direct(File),
    /// Becomes `path` when it is whole.
    New {
        file: NamedTempFile,
        path: PathBuf,
        existing: Existing,
    },
}

impl OutFile {
    /// Begins to write to `path`; `-` and `/dev/stdout` are standard output.
    ///
    /// # Errors
    ///
    /// [`Exit::Conflict`] if a file is there that is to stay, [`Exit::Usage`] for a terminal, [`Exit::Failed`] where nothing can be
    /// written.
    pub fn open(path: &Path, existing: Existing, readers: Readers) -> Result<OutFile, Failure> {
        let named = |place| OutFile { path: path.to_path_buf(), place };
        if [Path::new("-"), Path::new("/dev/stdout")].contains(&path) {
            if io::stdout().is_terminal() {
                let message = "this is no text: send it through a pipe or into a file ('> FILE', or name the file)";
                return Err(Failure::new(Exit::Usage, message));
            }
            return Ok(named(Place::Stdout(io::stdout())));
        }
        let mode = match readers {
            Readers::Owner => 0o600,
            Readers::Umask => 0o666,
        };
        let cannot = |error: io::Error| cannot_write(path, &error);
        let mut kept_mode = None;
        match std::fs::metadata(path) {
            // A disk has content to lose as well.
            Ok(found) if found.file_type().is_block_device() && existing != Existing::Replace => {
                return Err(is_there(path, existing));
            }
            Ok(found) if !found.is_file() => {
                let file = OpenOptions::new().write(true).open(path).map_err(cannot)?;
                return Ok(named(Place::Direct(file)));
            }
            Ok(found) if existing == Existing::Replace => kept_mode = Some(found.permissions()),
            Ok(_) => return Err(is_there(path, existing)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(cannot(error)),
        }
        let target = followed(path).map_err(cannot)?;
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut prefix = target.file_name().unwrap_or_default().to_owned();
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(&prefix).suffix(".partial").permissions(Permissions::from_mode(mode));
        let file = builder.tempfile_in(parent).map_err(cannot)?;
        if let Some(permissions) = kept_mode {
            file.as_file().set_permissions(permissions).map_err(cannot)?;
        }
        Ok(named(Place::New { file, path: target, existing }))
    }

    /// It is standard output: what else is to be said goes elsewhere.
    pub fn is_stdout(&self) -> bool {
        matches!(self.place, Place::Stdout(_))
    }

    /// All of it has been written: it is made durable and gets its name.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); a file that has come there meanwhile stays as well.
    pub fn finish(self) -> Result<(), Failure> {
        let path = self.path;
        let cannot = |error: io::Error| cannot_write(&path, &error);
        match self.place {
            Place::Stdout(mut out) => out.flush().map_err(|error| {
                Failure::new(Exit::Failed, format!("whoever was to take what is written has gone: {error}"))
            }),
            Place::Direct(file) => match file.sync_all() {
                // A pipe, or a device without a cache: there is nothing to wait for.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
                synced => synced.map_err(cannot),
            },
            Place::New { file, path: target, existing } => {
                file.as_file().sync_all().map_err(cannot)?;
                let renamed = match existing {
                    Existing::Replace => file.persist(&target),
                    Existing::Keep | Existing::KeepUnlessForced => file.persist_noclobber(&target),
                };
                match renamed {
                    Ok(_) => {}
                    Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => {
                        return Err(is_there(&path, existing));
                    }
                    Err(failed) => return Err(cannot(failed.error)),
                }
                let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
                File::open(parent.unwrap_or(Path::new("."))).and_then(|dir| dir.sync_all()).map_err(cannot)
            }
        }
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.place {
            Place::Stdout(out) => out.write(bytes),
            Place::Direct(file) => file.write(bytes),
            Place::New { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.place {
            Place::Stdout(out) => out.flush(),
            Place::Direct(file) => file.flush(),
            Place::New { file, .. } => file.flush(),
        }
    }
}

/// Writes a whole text or document.
///
/// # Errors
///
/// As [`OutFile::open`].
pub fn write_whole(path: &Path, bytes: &[u8], existing: Existing, readers: Readers) -> Result<(), Failure> {
    let mut file = OutFile::open(path, existing, readers)?;
    file.write_all(bytes).map_err(|error| cannot_write(path, &error))?;
    file.finish()
}

/// Where `path` leads when its last part is a symbolic link, also one that leads to nothing yet.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&path) {
            Ok(to) => path = path.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Why `path` did not get what it was to get.
pub fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("{}: cannot be written: {error}; name another file", path.display()))
}

fn is_there(path: &Path, existing: Existing) -> Failure {
    let or_force = if existing == Existing::KeepUnlessForced { ", or replace it with --force" } else { "" };
    Failure::new(Exit::Conflict, format!("{}: it exists already; name another file{or_force}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn put(path: &Path, existing: Existing) -> Result<(), Failure> {
        write_whole(path, b"new", existing, Readers::Umask)
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_that_is_there_stays_unless_it_is_to_be_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f");
        std::fs::write(&path, "old").expect("a file");
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("its mode");
        let refused = put(&path, Existing::Keep).expect_err("it is there");
        assert!(refused.exit == Exit::Conflict && !refused.message.contains("--force"), "{refused:?}");
        let refused = put(&path, Existing::KeepUnlessForced).expect_err("it is there");
        assert!(refused.exit == Exit::Conflict && refused.message.contains("--force"), "{refused:?}");
        assert_eq!(std::fs::read(&path).expect("a file"), b"old");
        put(&path, Existing::Replace).expect("replaced");
        assert_eq!(std::fs::read(&path).expect("a file"), b"new");
        assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o640);
        assert_eq!(names(dir.path()), ["f"]);
    }

    #[test]
    fn one_that_comes_meanwhile_stays_and_one_that_is_given_up_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f");
        let first = OutFile::open(&path, Existing::Keep, Readers::Owner).expect("a new file");
        std::fs::write(&path, "old").expect("a file");
        assert_eq!(first.finish().expect_err("it is there").exit, Exit::Conflict);
        let mut second = OutFile::open(&path, Existing::Replace, Readers::Owner).expect("a new file");
        second.write_all(b"half").expect("written");
        drop(second);
        assert_eq!(
            (names(dir.path()), std::fs::read(&path).expect("a file")),
            (vec!["f".to_string()], b"old".to_vec())
        );
    }

    #[test]
    fn links_are_followed_whether_or_not_something_is_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let (far, link) = (dir.path().join("far"), dir.path().join("link"));
        std::fs::create_dir(&far).expect("a directory");
        symlink("far/target", &link).expect("a link");
        put(&link, Existing::Keep).expect("written");
        assert_eq!(put(&link, Existing::Keep).expect_err("it is there").exit, Exit::Conflict);
        put(&link, Existing::Replace).expect("written");
        assert!(link.is_symlink());
        assert_eq!(
            (std::fs::read(far.join("target")).expect("a file"), names(&far)),
            (b"new".to_vec(), vec!["target".into()])
        );
        symlink("round", dir.path().join("round")).expect("a link");
        assert_eq!(put(&dir.path().join("round"), Existing::Replace).expect_err("a ring").exit, Exit::Failed);
    }

    #[test]
    fn what_is_no_file_is_written_to_and_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
        assert!(made.success());
        let reader = {
            let pipe = pipe.clone();
            std::thread::spawn(move || std::fs::read(pipe).expect("a pipe"))
        };
        put(&pipe, Existing::Keep).expect("written");
        assert_eq!(reader.join().expect("read"), b"new");
        assert!(std::fs::symlink_metadata(&pipe).expect("a pipe").file_type().is_fifo());
        // Nobody can write to a socket by its name; it stays all the same.
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let refused = put(&socket, Existing::Replace).expect_err("a socket");
        assert!(refused.exit == Exit::Failed && refused.message.contains("socket: cannot be written"), "{refused:?}");
        assert!(std::fs::symlink_metadata(&socket).expect("a socket").file_type().is_socket());
        assert_eq!(put(dir.path(), Existing::Replace).expect_err("a directory").exit, Exit::Failed);
    }
}
