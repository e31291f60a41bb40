use super::*;
use std::io::Write;

fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn read(bytes: &[u8], event: Option<Event>, device: Option<&str>) -> Result<Vec<Access>, String> {
    let file = file(bytes);
    let mut trace = Trace::open(file.path(), Format::Auto, event, device).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    while let Some(access) = trace.next().map_err(|error| error.to_string())? {
        found.push(access);
    }
    Ok(found)
}

fn accesses(bytes: &[u8]) -> Result<Vec<Access>, String> {
    read(bytes, None, None)
}

fn access(kind: Kind, space: u16, offset: u64, bytes: u64) -> Access {
    Access { kind, space, offset, bytes }
}

const BLKPARSE: &str = "\
  8,0    3        1     0.000000000   697  A   W 223490 + 8 <- (8,1) 221442
  8,0    3        2     0.000000829   697  Q   W 223490 + 8 [kjournald]
  8,0    3        3     0.000001829   697  D   W 223490 + 8 [kjournald]
  8,0    3        4     0.000002829   697  m   N cfq697 put_queue
  8,0    3        5     0.000003829     0  Q FWFS 64 + 16 [fio]
  8,0    3        6     0.000004829     0  Q  FN [fio]
  8,0    0        7     0.000009000     0  Q  RA 1024 + 256 [fio]
  8,0    0        8     0.000009100     0  U   N [fio] 1
  8,0    0        9     0.000009200     0  Q  DS 2048 + 2048 [fstrim]

CPU0 (8,0):
 Reads Queued:           0,        0KiB\t Writes Queued:           2,        8KiB
Total (8,0):
 Events (8,0): 9 entries
";

#[test]
fn both_versions_of_iologs_are_read() {
    let two = b"fio version 2 iolog\n/dev/a add\n/dev/b add\n/dev/a open\n/dev/a write 4096 8192\n/dev/b read 0 512\n\
                /dev/a sync 0 0\n/dev/a wait 100 0\n/dev/a trim 0 4096\n/dev/a close\n";
    let expected = [access(Kind::Write, 0, 4096, 8192), access(Kind::Read, 1, 0, 512), access(Kind::Trim, 0, 0, 4096)];
    assert_eq!(accesses(two).unwrap(), expected);
    let three = b"fio version 3 iolog\r\n0 /dev/a add\r\n1 /dev/a open\r\n7 /dev/a write 4096 8192\r\n9 /dev/a close";
    assert_eq!(accesses(three).unwrap(), expected[..1]);
}

#[test]
fn times_are_counted_from_the_first_and_never_go_back() {
    let of = |bytes: &[u8]| {
        let file = file(bytes);
        let mut trace = Trace::open(file.path(), Format::Auto, None, None).unwrap();
        let mut found = Vec::new();
        while trace.next().unwrap().is_some() {
            found.push(trace.time_ns());
        }
        found
    };
    let three =
        b"fio version 3 iolog\n5 /dev/a add\n7 /dev/a write 0 512\n9 /dev/a write 0 512\n8 /dev/a write 0 512\n";
    assert_eq!(of(three), [Some(2_000), Some(4_000), Some(4_000)]);
    let two = b"fio version 2 iolog\n/dev/a add\n/dev/a read 0 512\n/dev/a wait 100 0\n/dev/a read 0 512\n/dev/a wait 50\n/dev/a read 0 512\n";
    assert_eq!(of(two), [None, Some(100_000), Some(150_000)]);
    assert_eq!(of(BLKPARSE.as_bytes()), [0, 3_000, 8_171, 8_371].map(Some));
}

#[test]
fn what_blkparse_prints_is_read_up_to_its_summary() {
    let sectors = |kind, sector: u64, count: u64| access(kind, 0, sector * 512, count * 512);
    let expected = [
        sectors(Kind::Write, 223_490, 8),
        sectors(Kind::Write, 64, 16),
        sectors(Kind::Read, 1024, 256),
        sectors(Kind::Trim, 2048, 2048),
    ];
    assert_eq!(accesses(BLKPARSE.as_bytes()).unwrap(), expected);
    assert_eq!(read(BLKPARSE.as_bytes(), Some(Event::Issued), None).unwrap(), expected[..1]);
}

#[test]
fn errors_name_file_line_and_cause() {
    let of = |text: &str| accesses(text.as_bytes()).unwrap_err();
    let with = |line: &str| of(&format!("fio version 2 iolog\n/dev/a add\n{line}\n"));
    assert!(with("/dev/b write 0 4096").ends_with("line 3: file '/dev/b' is used and was not added before"));
    assert!(with("/dev/a write 0").ends_with("line 3: the length is missing"));
    assert!(with("/dev/a write x 4096").ends_with("line 3: the offset is 'x': expected a number"));
    assert!(with("/dev/a scribble 0 4096").contains("the action is 'scribble'"));
    assert!(with("/dev/a write 0 99999999999999").contains("line 3: a length of 99999999999999 bytes"));
    assert!(with("/dev/a write 99999999999999999999 1").contains("line 3: the offset"));
    assert!(with("/dev/a write 0 4096 7").contains("'7' after the length"));
    assert!(of("fio version 9 iolog\n").contains("line 1: 'fio version 9 iolog': expected"));
    assert!(of("").ends_with("it is empty: record while the load runs"));
    assert!(of("hello\n").contains("its format is not known"));
    let broken = BLKPARSE.replace("64 + 16", "64 + ?");
    assert!(of(&broken).contains("line 5: the number of sectors is '?'"));
    assert!(of(&"8,0 ".repeat(20_000)).contains("longer than"));
    assert!(accesses(b"8,0 \xff\xfe\n").unwrap_err().contains("its format is not known"));
    let text = accesses(b"  8,0 0 1 0.1 1 Q W 0 + 8 [x]\n\xff\n").unwrap_err();
    assert!(text.ends_with("line 2: it is no text"), "{text}");
}

#[test]
fn an_iolog_has_neither_devices_nor_events() {
    let log = b"fio version 2 iolog\n/dev/x add\n/dev/x write 0 4096\n";
    assert_eq!(accesses(log).unwrap().len(), 1);
    assert!(read(log, None, Some("8,0")).unwrap_err().contains("a fio iolog has no devices"));
    assert!(read(log, Some(Event::Completed), None).unwrap_err().contains("--event is for what blktrace records"));
}

#[test]
fn events_and_devices_that_are_missing_or_mixed_are_told() {
    let only_issued = "8,0 0 1 0.1 1 D W 0 + 8 [x]\n";
    assert!(accesses(only_issued.as_bytes()).unwrap_err().contains("1 'D' events: try --event D"));
    let two = "8,0 0 1 0.1 1 Q W 0 + 8 [x]\n253,1 0 1 0.1 1 Q W 0 + 8 [x]\n";
    assert!(accesses(two.as_bytes()).unwrap_err().contains("several devices (8,0 and 253,1)"));
    assert_eq!(read(two.as_bytes(), None, Some("253,1")).unwrap().len(), 1);
    assert!(read(two.as_bytes(), None, Some("9,9")).unwrap_err().contains("no 'Q' events of device 9,9"));
}

fn record(action: u32, sector: u64, bytes: u32, extra: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&0x6561_7407u32.to_le_bytes());
    out.extend_from_slice(&[0; 12]);
    out.extend_from_slice(&sector.to_le_bytes());
    [bytes, action, 1, 8 << 20].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    out.extend_from_slice(&[0; 6]);
    out.extend_from_slice(&(extra.len() as u16).to_le_bytes());
    out.extend_from_slice(extra);
    out
}

#[test]
fn binary_records_are_read_and_cut_ones_are_told() {
    let queued = 1 | 1 << 20;
    let whole = [
        record(queued | 1 << 17, 100, 4096, b""),
        record(1 << 26, 0, 0, b"notify"),
        record(7 | 1 << 22 | 1 << 16, 0, 512, b""),
        record(queued | 1 << 16, 1, 512, b"remap"),
    ]
    .concat();
    let expected = [access(Kind::Write, 0, 51_200, 4096), access(Kind::Read, 0, 512, 512)];
    assert_eq!(accesses(&whole).unwrap(), expected);
    let cut = accesses(&whole[..whole.len() - 1]).unwrap_err();
    assert!(cut.ends_with("byte 150: it ends in the middle of a record"), "{cut}");
    let mut wrong = whole;
    wrong[48] ^= 1;
    assert!(accesses(&wrong).unwrap_err().contains("byte 48: a record begins with"));
}
