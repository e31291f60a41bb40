//! What a wrong configuration is told.

use super::*;

/// `line:column: message; help` of every problem.
fn problems(text: &str) -> Vec<String> {
    problems_by(Config::parse, text)
}

fn problems_by(read: fn(&str, String) -> Result<Config, BadConfig>, text: &str) -> Vec<String> {
    let bad = read("/x/node.toml", text.to_string()).expect_err("the configuration is wrong");
    let show = |problem: &diagnostic::Diagnostic| {
        let (line, column) = problem.span.as_ref().map_or((0, 0), |span| bad.source.position(span.start));
        let help = problem.help.as_ref().map_or(String::new(), |help| format!("; {help}"));
        format!("{line}:{column}: {}{help}", problem.message)
    };
    bad.problems.iter().map(show).collect()
}

fn assert_problem(text: &str, place: &str, parts: &[&str]) {
    assert_one(text, problems(text), place, parts);
}

/// A problem of which only a look tells: the node starts with it.
fn assert_looked(text: &str, place: &str, parts: &[&str]) {
    assert!(Config::parse("/x/node.toml", text.to_string()).is_ok(), "{text}");
    assert_one(text, problems_by(Config::parse_and_look, text), place, parts);
}

fn assert_good(text: &str) {
    if let Err(bad) = Config::parse_and_look("/x/node.toml", text.to_string()) {
        panic!("{text}\n{}", bad.render());
    }
}

fn assert_one(text: &str, found: Vec<String>, place: &str, parts: &[&str]) {
    let good = found.len() == 1 && found[0].starts_with(place) && parts.iter().all(|part| found[0].contains(part));
    assert!(good, "{text}\nexpected {place} {parts:?}\nfound {found:#?}");
}

const MEM: &str = "[[device]]\nname = 'm'\nkind = 'mem'\nsize = '1MiB'\n";

#[test]
fn an_empty_file_is_a_node_without_devices() {
    let config = Config::parse("/x/node.toml", String::new()).unwrap();
    assert_eq!((config.devices.len(), config.node.reactors.len()), (0, 1));
    assert_eq!(config.node.policy, Policy::Adaptive(50_000));
}

#[test]
fn the_example_is_good() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.toml").to_string_lossy().into_owned();
    let config = Config::parse(&path, reference::EXAMPLE.to_string()).unwrap();
    assert_eq!((config.devices.len(), config.volumes.len(), config.subsystems.len()), (3, 1, 1));
    assert_eq!(config.node.state_dir, dir.path().join("state"));
}

#[test]
fn paths_of_a_remote_namespace_stand_beside_its_address_or_instead_of_it() {
    let remote = |keys: &str| format!("[[device]]\nname='r'\nkind='nvmf'\nnqn='nqn.2026-11.io.remuda:x'\n{keys}\n");
    for keys in ["address='10.0.0.1'\npaths=['10.0.0.2:9']", "paths=['10.0.0.1:4420', '10.0.0.2:9']"] {
        let config = Config::parse("/x/node.toml", remote(keys)).unwrap();
        let DeviceParams::Nvmf { address, paths, .. } = &config.devices[0].def.params else { panic!() };
        assert_eq!((address.as_str(), paths.as_slice()), ("10.0.0.1:4420", &["10.0.0.2:9".to_string()][..]));
    }
    assert_problem(&remote("paths=['10.0.0.1', '10.0.0.1:4420']"), "5:", &["10.0.0.1:4420 is named twice"]);
    assert_problem(&remote("address='10.0.0.1'\npaths=['far']"), "6:", &["'far' is not an IP address"]);
    let many: Vec<String> = (1..10).map(|host| format!("'10.0.0.{host}'")).collect();
    let found = problems(&remote(&format!("paths=[{}]", many.join(","))));
    assert!(found.len() == 1 && found[0].contains("8 paths at most, found 9"), "{found:?}");
}

#[test]
fn unknown_keys_name_the_nearest() {
    assert_problem("[node]\npoll_polcy = 'busy'", "2:1:", &["poll_polcy", "did you mean 'poll_policy'"]);
    assert_problem("[noode]\n", "1:2:", &["unknown section 'noode'", "did you mean 'node'"]);
    assert_problem("listen = ['x']\n", "1:1:", &["'listen' belongs below [nvmf]"]);
    assert_problem(&format!("{MEM}path = 'x'"), "5:1:", &["unknown key 'path'", "kinds that do: file"]);
    let volume = "[[volume]]\nname='v'\ndevice='m'\nsizze='1M'\n";
    assert_problem(&format!("{volume}{MEM}"), "4:1:", &["unknown key 'sizze'", "did you mean 'size'"]);
}

#[test]
fn wrong_values_name_the_nearest_and_the_place() {
    assert_problem("[node]\npoll_policy = 'adaptiv'", "2:15:", &["did you mean 'adaptive'"]);
    assert_problem("[[device]]\nname='d'\nkind='stirpe'", "3:6:", &["'stirpe'", "did you mean 'stripe'"]);
    assert_problem("[node]\nspin_max = 5", "2:12:", &["expected duration", "found an integer"]);
    assert_problem("[nvmf]\nio_queues = 1000", "2:13:", &["1000 is not within 1 and 256"]);
    assert_problem("[nvmf]\nstall_timeout = '10ms'", "2:17:", &["at least a second"]);
    assert_problem("[nvmf]\nstall_bytes_min = 0", "2:19:", &["from 1 byte to 1 GiB"]);
    assert_problem("[nvmf]\nlisten = ['0.0.0.0:4420']", "2:11:", &["not a loopback address", "insecure = true"]);
    assert_problem("[node]\nreactors = [9999]", "2:12:", &["core 9999 is not available"]);
    assert_problem(&MEM.replace("1MiB", "1XiB"), "4:8:", &["'1XiB' is not a size"]);
    assert_problem(&MEM.replace("1MiB", "1000"), "4:8:", &["not a multiple of the block size"]);
    assert_problem(&MEM.replace("'m'", "'a/b'"), "2:8:", &["not a valid name"]);
}

#[test]
fn syntax_errors_have_a_place() {
    assert!(problems("[node]\nreactors = = 2\n")[0].starts_with("2:12:"));
    assert!(problems("[node]\nreactors = 1\nreactors = 2\n")[0].starts_with("3:1:"));
}

#[test]
fn references_to_nothing_name_the_nearest() {
    let volume = "[[volume]]\nname = 'v'\ndevice = 'n'\n";
    assert_problem(&format!("{MEM}{volume}"), "7:10:", &["there is no device 'n'", "known: m"]);
    let subsystem = "[[subsystem]]\nnqn = 'nqn.2026-11.x:y'\nnamespaces = ['w']\n";
    let text = format!("{MEM}{}{subsystem}", volume.replace("'n'", "'m'"));
    assert_problem(&text, "10:15:", &["there is no volume 'w'", "known: v"]);
}

#[test]
fn a_reference_to_a_wrong_section_is_not_a_second_problem() {
    let text = format!("{}[[volume]]\nname = 'v'\ndevice = 'm'\n", MEM.replace("1MiB", "1XiB"));
    assert_problem(&text, "4:8:", &["not a size"]);
}

#[test]
fn names_used_twice_point_to_the_first() {
    assert_problem(&format!("{MEM}{MEM}"), "6:8:", &["device 'm' is defined twice", "line 2"]);
}

#[test]
fn devices_that_stand_on_themselves_are_found() {
    let layer = |name: &str, below: &str| format!("[[device]]\nname='{name}'\nkind='checksum'\ndevice='{below}'\n");
    assert_problem(&layer("a", "a"), "4:8:", &["stands on itself: a -> a"]);
    let ring = layer("a", "b") + &layer("b", "c") + &layer("c", "a");
    assert_problem(&ring, "12:8:", &["a -> b -> c -> a"]);
}

#[test]
fn a_device_has_one_user() {
    let layer = |name: &str| format!("[[device]]\nname='{name}'\nkind='checksum'\ndevice='m'\n");
    assert_problem(&format!("{MEM}{}{}", layer("a"), layer("b")), "12:8:", &["already used by device 'a'"]);
    let volume = "[[volume]]\nname='v'\ndevice='m'\n";
    assert_problem(&format!("{MEM}{}{volume}", layer("a")), "11:8:", &["put the volume on 'a'"]);
}

#[test]
fn volumes_fit_and_do_not_overlap() {
    let volume = |name: &str, rest: &str| format!("[[volume]]\nname='{name}'\ndevice='m'\n{rest}\n");
    let text = format!("{MEM}{}", volume("v", "size='2MiB'"));
    assert_problem(&text, "8:6:", &["past the end of device 'm' (1 MiB)"]);
    let both = volume("v", "size=65536\noffset=0") + &volume("w", "size=65536\noffset=4096");
    assert_problem(&format!("{MEM}{both}"), "14:8:", &["'w' and 'v' (line 6) overlap"]);
    let whole = volume("v", "") + &volume("w", "size=65536");
    assert!(problems(&format!("{MEM}{whole}"))[0].contains("'v' takes the whole device"));
}

#[test]
fn missing_files_are_found_before_anything_starts() {
    let text = "[[device]]\nname='f'\nkind='file'\npath='/nonexistent/disk'\n";
    assert_problem(text, "4:6:", &["/nonexistent/disk does not exist", "add size"]);
    let text = format!("{text}size='1MiB'\n");
    assert_problem(&text, "4:6:", &["/nonexistent is not a directory", "mkdir -p"]);
}

#[test]
fn all_problems_are_reported_in_the_order_of_the_file() {
    let text = format!("[node]\nreactorz = 1\n{}[[volume]]\nname='v'\ndevice='q'\n", MEM.replace("1MiB", "x"));
    let found = problems(&text);
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(found[0].starts_with("2:1") && found[1].starts_with("6:8") && found[2].starts_with("9:8"), "{found:#?}");
}

#[test]
fn random_damage_never_panics() {
    let mut rng = base::Rng::new(5);
    for _ in 0..2000 {
        let mut text: Vec<char> = reference::EXAMPLE.chars().collect();
        for _ in 0..rng.between(1, 5) {
            let at = rng.below(text.len() as u64) as usize;
            match rng.below(3) {
                0 => drop(text.remove(at)),
                1 => text[at] = char::from_u32(rng.below(0x250) as u32).unwrap_or('x'),
                _ => text.insert(at, ['[', ']', '"', '=', '\n', '{'][rng.below(6) as usize]),
            }
        }
        if let Err(bad) = Config::parse("/nonexistent/node.toml", text.into_iter().collect()) {
            assert!(!bad.problems.is_empty());
            let _ = (bad.render(), bad.to_json());
        }
    }
}

#[test]
fn nvme_names_are_checked() {
    for good in ["nqn.2026-11.io.remuda:a", "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427"] {
        assert!(check_nqn(good).is_ok(), "{good}");
    }
    for bad in [
        "",
        "x",
        "nqn.2026.x:y",
        "nqn.2026-13.x:y",
        "nqn.2026-11.",
        "nqn.2026-11.x: y",
        "nqn.2026-11é.x",
        "nqn.2014-08.org.nvmexpress:uuid:a",
        "nqn.2014-08.org.nvmexpress:uuid:...",
    ] {
        assert!(check_nqn(bad).is_err(), "{bad}");
    }
    assert!(check_nqn(&format!("nqn.2026-11.x:{}", "y".repeat(223))).is_err());
}

#[test]
fn pools_are_checked_like_everything_else() {
    let mem = MEM.replace("1MiB", "1GiB");
    let devices = format!("{mem}{}", mem.replace("'m'", "'n'"));
    let good = format!("{devices}[pool.p]\nlog = 'm'\ncapacity = 'n'\nshards = 2\nmap_cache = '8MiB'\n");
    let volume = "[[volume]]\nname = 'v'\npool = 'p'\nsize = '1GiB'\n";
    assert!(Config::parse("/x/node.toml", format!("{good}{volume}")).is_ok());
    assert_problem(&good.replace("map_cache", "mapcache"), "13:1:", &["unknown key 'mapcache'", "'map_cache'"]);
    assert_problem(&good.replace("log = 'm'", "log = 'mm'"), "10:7:", &["there is no device 'mm'", "known: m, n"]);
    assert_problem(&good.replace("capacity = 'n'", "capacity = 'm'"), "11:12:", &["one device"]);
    assert_problem(&good.replace("log = 'm'\n", ""), "9:7:", &["pool 'p' has no 'log'"]);
    let pmem = good.replace("log = 'm'", "log = { pmem = '/dev/dax0.0', sice = '1GiB' }");
    let found = problems(&pmem);
    assert!(found[0].contains("has no 'size'") && found[1].contains("did you mean 'size'"), "{found:#?}");
    assert_problem(
        &format!("{good}{}", volume.replace("'p'", "'pp'")),
        "16:8:",
        &["there is no pool 'pp'", "known: p"],
    );
    let taken = "[[volume]]\nname = 'v'\ndevice = 'n'\n";
    assert_problem(&format!("{good}{taken}"), "16:10:", &["already used by pool 'p'", "pool = \"p\""]);
    assert_problem(&format!("{good}{volume}offset = 0\n"), "18:10:", &["remove 'offset'"]);
}

#[test]
fn devices_that_are_too_small_for_a_pool_are_named_with_what_it_needs() {
    let file = |log: &str, capacity: &str| {
        let device = |name: &str, size: &str| MEM.replace("'m'", &format!("'{name}'")).replace("1MiB", size);
        let mirror = "[[device]]\nname = 'a'\nkind = 'mirror'\ndevices = ['n', 'o']\n";
        let devices = [device("m", log), device("n", capacity), device("o", "1GiB"), mirror.to_string()].concat();
        format!("{devices}[pool.p]\nlog = 'm'\ncapacity = 'a'\n")
    };
    assert_good(&file("64MiB", "257MiB"));
    // Beside the mirror's own blocks.
    assert_looked(&file("64MiB", "256MiB"), "19:12:", &["the capacity device has 255 MiB", "at least 256 MiB"]);
    assert_looked(&file("63MiB", "256MiB"), "18:7:", &["device 'm' has 63 MiB", "log of pool 'p' needs 64 MiB"]);
    assert_looked(&file("64MiB", "255MiB"), "19:12:", &["device 'a' has 255 MiB at most", "needs 256 MiB"]);
    assert_looked(&file("64MiB", "40960"), "19:12:", &["without a unit is bytes", "300MiB"]);
    let pmem =
        file("64MiB", "1GiB").replace("log = 'm'", "log = { pmem = '/dev/dax0.0', size = '300', volatile = true }");
    assert_looked(&pmem, "18:16:", &["/dev/dax0.0 has 300 B", "without a unit is bytes"]);
    let pmem = file("64MiB", "1GiB").replace("log = 'm'", "log = { pmem = '/', size = '64MiB', volatile = true }");
    assert_looked(&pmem, "18:16:", &["'p': its log / is neither a file nor a DAX device"]);
    assert_problem(&MEM.replace("1MiB", "300"), "4:8:", &["300 bytes", "without a unit is bytes"]);
}

#[test]
fn pools_that_cannot_be_made_are_found_as_the_engine_plans_them() {
    let device = |name: &str, size: &str| MEM.replace("'m'", &format!("'{name}'")).replace("1MiB", size);
    let with = |more: &str, capacity: &str, keys: &str| {
        let devices = [device("l", "64MiB"), device("c", "512MiB"), more.to_string()].concat();
        format!("{devices}[pool.p]\nlog = 'l'\ncapacity = '{capacity}'\n{keys}\n")
    };
    let shaped = |keys: &str| with("", "c", &format!("shape = 'shaped'\n{keys}"));
    let good = [with("", "c", "shards = 1"), shaped("write_unit = '128KiB'\nband = '8MiB'")];
    good.iter().for_each(|text| assert!(Config::parse_and_look("/x/node.toml", text.clone()).is_ok(), "{text}"));
    assert_looked(&with("", "c", "shards = 2"), "12:10:", &["pool 'p' cannot be made: 2 shards", "room for 1 to 1"]);
    assert_looked(&shaped("write_unit = '12KiB'"), "13:14:", &["a unit of writes of 12 KiB", "a power of two"]);
    assert_looked(&shaped("band = '12MiB'"), "13:8:", &["a band of 12288 KiB", "a power of two"]);
    assert_looked(&shaped("grow_to = '256MiB'"), "13:11:", &["has 512 already"]);
    assert_looked(&shaped("grow_to = '64TiB'"), "10:7:", &["the index of a shaped pool"]);
    // What stands on others can have more than is known.
    let mirror = format!("{}[[device]]\nname = 'a'\nkind = 'mirror'\ndevices = ['c', 'd']\n", device("d", "512MiB"));
    assert_looked(&with(&mirror, "a", "shards = 2"), "20:10:", &["room for 1 to 1"]);
    // What it has is planned by the code that makes it.
    let grow = |to: &str| with(&mirror, "a", &format!("shape = 'shaped'\ngrow_to = '{to}'"));
    assert_good(&grow("511MiB"));
    assert_looked(&grow("500MiB"), "21:11:", &["has 511 already"]);
    let zoned = "[[device]]\nname = 'z'\nkind = 'zoned'\ndevice = 'c'\nzone_size = '4MiB'\n";
    assert_looked(&with(zoned, "z", ""), "16:12:", &["device 'z' is zoned", "'zone-bands'"]);
    let much = format!("{}[[volume]]\nname = 'v'\npool = 'p'\nsize = '16383PiB'\n", good[0]);
    assert!(problems(&much)[0].contains("more than the"), "{:?}", problems(&much));
}

/// `[[device]]` of memory.
fn mem(name: &str, size: &str) -> String {
    MEM.replace("'m'", &format!("'{name}'")).replace("1MiB", size)
}

#[test]
fn pools_over_rows_of_parity_are_planned_as_the_node_does() {
    // The log has lines 1 to 4, the members 5 to 20, the array 21 to 25, the pool those from 26 on.
    let on = |member: &str, array: &str, keys: &str| {
        let members: String = ["a", "b", "c", "d"].map(|name| mem(name, member)).concat();
        let array = format!("[[device]]\nname = 'p'\nkind = 'parity'\ndevices = ['a', 'b', 'c', 'd']\n{array}\n");
        let log = mem("l", "64MiB");
        format!("{log}{members}{array}[pool.p]\nlog = 'l'\ncapacity = 'p'\nshape = 'shaped'\n{keys}\n")
    };
    assert_good(&on("256MiB", "", "write_unit = '384KiB'\nband = '6MiB'"));
    assert_looked(&on("256MiB", "", "write_unit = '64KiB'"), "30:14:", &["a unit of writes of 64 KiB", "192 KiB"]);
    assert_good(&on("256MiB", "chunk = '16KiB'", "write_unit = '96KiB'"));
    assert_looked(&on("256MiB", "", "band = '4MiB'"), "30:8:", &["a band of 4096 KiB", "a multiple of 192 KiB"]);
    let small = "pool 'p' cannot be made: the capacity device has 255 MiB";
    assert_looked(&on("94MiB", "", ""), "28:12:", &[small, "at least 256 MiB"]);
    assert_looked(&on("256MiB", "head = '240MiB'", ""), "26:", &["pool 'p' cannot be made: bands of", "larger device"]);
    assert_looked(&on("256MiB", "head = '256KiB'", ""), "28:12:", &["256 KiB in front of its rows", "larger head"]);
    let none = "device 'p' cannot be made: members of 262144 KiB leave no room behind a head of 262144 KiB";
    assert_looked(&on("256MiB", "head = '256MiB'", ""), "22:8:", &[none, "a smaller head"]);
    // Also through what passes everything on.
    let delayed = on("256MiB", "", "write_unit = '64KiB'").replace("capacity = 'p'", "capacity = 'slow'");
    let delay = "[[device]]\nname = 'slow'\nkind = 'delay'\ndevice = 'p'\nread = '1ms'\n";
    assert_looked(&format!("{delay}{delayed}"), "35:14:", &["a unit of writes of 64 KiB", "192 KiB"]);
}

#[test]
fn members_that_are_files_are_planned_as_far_as_they_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let file = |name: &str, size: &str| {
        format!("[[device]]\nname = '{name}'\nkind = 'file'\npath = '{}'\n{size}\n", path(name))
    };
    let on = |size: &str, keys: &str| {
        let members: String = ["a", "b", "c"].map(|name| file(name, size)).concat();
        let array = "[[device]]\nname = 'p'\nkind = 'parity'\ndevices = ['a', 'b', 'c']\n";
        let log = mem("l", "64MiB");
        format!("{log}{members}{array}[pool.p]\nlog = 'l'\ncapacity = 'p'\nshape = 'shaped'\n{keys}\n")
    };
    let wrong = "write_unit = '64KiB'";
    assert_looked(&on("size = '256MiB'", wrong), "28:14:", &["a multiple of 128 KiB"]);
    // Not there, and of an unknown size.
    assert_good(&on("", wrong));
    for name in ["a", "b", "c"] {
        std::fs::File::create(path(name)).unwrap().set_len(256 << 20).unwrap();
    }
    assert_looked(&on("", wrong), "28:14:", &["a multiple of 128 KiB"]);
    // What is there may have been made otherwise.
    std::fs::OpenOptions::new()
        .write(true)
        .open(path("b"))
        .map(|mut file| {
            use std::io::Write;
            file.write_all(&[1]).unwrap();
        })
        .unwrap();
    assert_good(&on("", wrong));
}

#[test]
fn pools_over_zones_are_planned_as_the_node_does() {
    // The log has lines 1 to 4, the drive 5 to 8, the head 9 to 12, the zones 13 to 17, the bands 18 to 22.
    let on = |drive: &str, head: &str, zones: &str, keys: &str| {
        let devices = [mem("l", "256MiB"), mem("d", drive), mem("h", head)].concat();
        let zones = format!("[[device]]\nname = 'z'\nkind = 'zoned'\ndevice = 'd'\n{zones}\n");
        let bands = "[[device]]\nname = 'b'\nkind = 'zone-bands'\nhead = 'h'\nzones = 'z'\n";
        format!("{devices}{zones}{bands}[pool.p]\nlog = 'l'\ncapacity = 'b'\nshape = 'shaped'\n{keys}\n")
    };
    let zoned = |keys: &str| on("1200MiB", "32MiB", "zone_size = '8MiB'", keys);
    assert_good(&zoned("band = '8MiB'\nwrite_unit = '128KiB'"));
    assert_looked(&zoned("band = '4MiB'"), "27:8:", &["on a zoned device a band is a zone, of 8192 KiB"]);
    assert_looked(&zoned("write_unit = '96KiB'"), "27:14:", &["divides a zone's 8192 KiB"]);
    let limited =
        |keys: &str| on("1200MiB", "32MiB", "zone_size = '8MiB'", keys).replace("zone_size", "max_open = 4\nzone_size");
    assert_good(&limited("shards = 1"));
    assert_looked(&limited("shards = 2"), "28:10:", &["2 shards keep up to 5 zones open", "allows 4"]);
    assert_looked(&on("1200MiB", "1MiB", "zone_size = '8MiB'", ""), "25:12:", &["in front of its rows", "larger head"]);
    assert_looked(
        &on("1200MiB", "32MiB", "zone_size = '256MiB'", ""),
        "23:",
        &["bands of 262144 KiB", "smaller bands"],
    );
    let large = on("1200MiB", "32MiB", "zone_size = '2GiB'", "");
    assert_looked(&large, "14:8:", &["device 'z' cannot be made: the child is too small for a zone"]);
    assert_looked(&on("1200MiB", "32MiB", "zone_size = '1GiB'", ""), "19:8:", &["1 zones", "two zones at least"]);
}

#[test]
fn pools_on_what_keeps_nothing_are_found() {
    let null = |name: &str| mem(name, "512MiB").replace("'mem'", "'null'");
    let pool = "[pool.p]\nlog = 'l'\ncapacity = 'c'\n";
    let on = |devices: [String; 3]| format!("{}{pool}", devices.concat());
    assert_looked(
        &on([null("l"), mem("c", "512MiB"), String::new()]),
        "10:7:",
        &["pool 'p' cannot stand on it: device 'l' keeps nothing", "name a device that keeps"],
    );
    let stripe = "[[device]]\nname = 'c'\nkind = 'stripe'\ndevices = ['a', 'n']\n".to_string();
    let over = |upper: &str| [mem("l", "64MiB"), mem("a", "512MiB"), null("n") + upper].concat() + pool;
    assert_looked(&over(&stripe), "19:12:", &["device 'c' stands on 'n', which keeps nothing"]);
    let mirror = over(&stripe.replace("'stripe'", "'mirror'"));
    assert_good(&mirror);
    assert!(
        warnings(&mirror).iter().any(|warning| {
            warning.starts_with("/x/node.toml:19: pool 'p': its capacity stands on device 'n' too, which keeps nothing")
        }),
        "{:?}",
        warnings(&mirror)
    );
}

fn warnings(text: &str) -> Vec<String> {
    Config::parse("/x/node.toml", text.to_string()).unwrap().warnings()
}

#[test]
fn pools_in_memory_are_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = dir.path().join(name).to_string_lossy().into_owned();
        format!("[[device]]\nname = '{name}'\nkind = 'file'\npath = '{path}'\nsize = '512MiB'\n")
    };
    let pool = "[pool.p]\nlog = 'l'\ncapacity = 'c'\n";
    assert_eq!(warnings(&[file("l"), file("c"), pool.into()].concat()), Vec::<String>::new());
    let log = warnings(&[mem("l", "64MiB"), file("c"), pool.into()].concat());
    let parts = ["/x/node.toml:11: pool 'p': its log is in memory (device 'l')", "empty after a restart", "are lost"];
    assert_eq!(log.len(), 1, "{log:?}");
    parts.iter().for_each(|part| assert!(log[0].contains(part), "{part}: {log:?}"));
    let both = warnings(&[mem("l", "64MiB"), mem("c", "512MiB"), pool.into()].concat());
    assert!(both.len() == 2 && both[1].contains(":11: pool 'p': its capacity is in memory (device 'c')"), "{both:?}");
    // One leg keeps it, or none does.
    let mirror = "[[device]]\nname = 'l'\nkind = 'mirror'\ndevices = ['x', 'y']\n".to_string();
    let legs = |x: String, y: String| warnings(&[x, y, mirror.clone(), file("c"), pool.into()].concat());
    assert_eq!(legs(mem("x", "128MiB"), file("y")), Vec::<String>::new());
    assert!(legs(mem("x", "128MiB"), mem("y", "128MiB"))[0].contains("device 'x'"));
}

#[test]
fn keys_of_shaped_pools_in_others_are_pointed_at() {
    let text = |key: &str| {
        [mem("l", "64MiB"), mem("c", "512MiB"), format!("[pool.p]\nlog = 'l'\ncapacity = 'c'\n{key}\n")].concat()
    };
    for (key, place) in [("overprovision = 10", "12:17:"), ("band = '4MiB'", "12:8:"), ("grow_to = '1GiB'", "12:11:")] {
        assert_problem(&text(key), place, &["is for shaped pools", "shape = \"shaped\""]);
    }
    assert_problem(&text("shape = 'warm'"), "12:9:", &["not a shape of its own", "flash-cache"]);
    assert_problem(&text("shape = 'round'"), "12:9:", &["is not a valid value", "hot, shaped"]);
}

#[test]
fn sizes_are_looked_at_once_also_around_a_cycle() {
    let device = |name: &str| {
        let below = ["a", "b", "c"].map(|name| format!("'{name}'")).join(", ");
        format!("[[device]]\nname = '{name}'\nkind = 'mirror'\ndevices = [{below}]\n")
    };
    let more: String = (0..31).map(|index| MEM.replace("'m'", &format!("'m{index}'"))).collect();
    let text = format!("{}{more}{MEM}[pool.p]\nlog = 'm'\ncapacity = 'a'\n", ["a", "b", "c"].map(device).concat());
    // Without a memory of what has been seen, this takes as many steps as there are paths of 36 devices.
    let found = problems_by(Config::parse_and_look, &text);
    assert!(found.iter().any(|problem| problem.contains("stands on itself")), "{found:#?}");
    assert!(found.iter().any(|problem| problem.contains("device 'm' has 1 MiB at most")), "{found:#?}");
}

#[test]
fn two_listeners_on_one_port_are_found() {
    let text = "[node]\nmetrics_listen = '127.0.0.1:4420'\n[nvmf]\nlisten = ['127.0.0.1']\n";
    assert_problem(
        text,
        "0:0:",
        &["metrics_listen 127.0.0.1:4420 and listen 127.0.0.1:4420 are the same port", "\"off\""],
    );
    let all = text.replace("['127.0.0.1']", "['0.0.0.0']\ninsecure = true");
    assert_problem(&all, "0:0:", &["listen 0.0.0.0:4420 are the same port"]);
    let default = "[nvmf]\nlisten = ['127.0.0.1:9420']\n";
    assert_looked(default, "0:0:", &["unless told otherwise", "metrics_listen in [node]"]);
    let both = "[node]\nmetrics_listen = 'off'\n[nvmf]\nlisten = ['0.0.0.0', '[::]']\ninsecure = true\n";
    assert_looked(both, "0:0:", &["listen [::]:4420 and listen 0.0.0.0:4420 are the same port"]);
    assert!(
        Config::parse("/x/node.toml", text.replace("listen = ['127", "listen = ['[::1]:4420', '127.0.0.2']#")).is_ok()
    );
    assert!(Config::parse("/x/node.toml", text.replace("'127.0.0.1:4420'", "'off'")).is_ok());
    let door = "[node]\nrpc_socket = '/tmp/r.sock'\n[[volume]]\nname = 'v'\ndevice = 'm'\n[[vhost]]\nname = 'd'\nvolume = 'v'\nsocket = '/tmp/r.sock'\n";
    assert_problem(&format!("{door}{MEM}"), "9:10:", &["/tmp/r.sock is the node's own rpc_socket"]);
}

#[test]
fn a_unit_of_writes_may_be_a_row_of_parity() {
    let device = |name: &str| MEM.replace("'m'", &format!("'{name}'")).replace("1MiB", "1GiB");
    let shaped = |keys: &str| {
        let pool = "[pool.p]\nlog='l'\ncapacity='c'\nshape='shaped'\n";
        format!("{}{}{pool}{keys}\n", device("l"), device("c"))
    };
    assert!(Config::parse("/x/node.toml", shaped("write_unit='192KiB'\nband='24MiB'")).is_ok());
    assert_problem(&shaped("write_unit='6KiB'"), "13:12:", &["a multiple of 4KiB"]);
}

#[test]
fn zones_are_checked_as_far_as_they_can_be_without_the_device() {
    let zoned = |keys: &str| format!("{MEM}[[device]]\nname='z'\nkind='zoned'\ndevice='m'\n{keys}\n");
    assert_problem(&zoned("zone_size='3MiB'"), "9:11:", &["a power of two"]);
    assert_problem(&zoned("zone_size='4MiB'\ncapacity='5MiB'"), "10:10:", &["within a zone's 4194304 bytes"]);
    assert_problem(&zoned("max_open=3\nmax_active=2"), "9:10:", &["open zones are active"]);
    assert_problem(&zoned("zone_sice='4MiB'"), "9:1:", &["did you mean 'zone_size'"]);
    assert_problem(&zoned("extension=100"), "9:11:", &["multiple of 64, up to 4032"]);
    assert_problem(&zoned("extension=4096"), "9:11:", &["multiple of 64, up to 4032"]);
    let good = zoned("zone_size='4MiB'\ncapacity='3MiB'\nmax_open=2\nmax_active=2\nextension=128");
    assert!(Config::parse("/x/node.toml", good).is_ok());
}

#[test]
fn who_sees_namespaces_and_how_ports_reach_them_is_checked() {
    let subsystem = |rest: &str| {
        format!(
            "{MEM}[[volume]]\nname='v'\ndevice='m'\n[[subsystem]]\nnqn='nqn.2026-11.org.example:s'\nhosts=['nqn.2026-11.org.example:h']\n{rest}\n"
        )
    };
    let volume = |rest: &str| subsystem(&format!("namespaces=[{{ volume='v', {rest} }}]"));
    assert_problem(&volume("hosts=['nqn.2026-11.org.example:x']"), "11:", &["may not connect", "add \"nqn.2026-11"]);
    assert_problem(&volume("hosts=['x']"), "11:", &["'x' is not an NVMe name"]);
    assert_problem(&volume("ana_group=65"), "11:", &["65 is not within 1 and 64"]);
    assert_problem(&volume("uuid='7'"), "11:", &["'7' is not a UUID"]);
    assert_problem(&subsystem("controller_ids='9-3'"), "11:", &["'9-3' is not a range within 1-65519"]);
    assert_problem(&subsystem("ana=[{ state='inaccesible' }]"), "11:", &["did you mean 'inaccessible'"]);
    assert_problem(&subsystem("ana=[{ group=3 }]"), "11:", &["no 'state'"]);
    let twice = "ana=[{ state='change' }, { state='optimized', group=1 }]";
    assert_problem(&subsystem(twice), "11:", &["group 1 there is given twice"]);
    let port = subsystem("ana=[{ state='change', port='10.0.0.1' }]");
    assert_problem(&port, "11:", &["does not listen on 10.0.0.1:4420"]);
    let listen = format!("{port}[nvmf]\nlisten=['10.0.0.1:4420']\ninsecure=true\n");
    let config = Config::parse("/x/node.toml", listen).unwrap();
    assert_eq!(config.subsystems[0].ana[0].port.as_ref().unwrap().value.port(), 4420);
}

#[test]
fn limits_that_are_lower_than_hosts_bear_are_warned_of() {
    let config = |rates: &str| {
        let text = format!("[[limit]]\nvolume='v0'\n{rates}\n");
        let source = Source { path: "/x/node.toml".into(), text };
        parse_text(&source, &mut Problems::default()).unwrap().warnings()
    };
    assert_eq!(config("iops=5\nbandwidth='5MiB'"), Vec::<String>::new());
    for (rates, takes) in [("bandwidth='1MiB'", "takes 128 s"), ("iops=4\nbandwidth='1GiB'", "takes 32 s")] {
        let warnings = config(rates);
        assert!(warnings[0].starts_with("/x/node.toml:2: limit of volume 'v0': "), "{warnings:?}");
        assert!(warnings[0].contains(takes) && warnings[0].contains("nvme_core.io_timeout"), "{warnings:?}");
    }
}

#[test]
fn keys_where_every_host_may_connect_are_warned_of() {
    let config = |hosts: &str| {
        let keys = "host_keys=[{ host='nqn.2026-11.org.example:h', dhchap_key='/x/key' }]";
        let text = format!("[[subsystem]]\nnqn='nqn.2026-11.org.example:s'\n{hosts}\n{keys}\n");
        let source = Source { path: "/x/node.toml".into(), text };
        parse_text(&source, &mut Problems::default()).unwrap().warnings()
    };
    assert_eq!(config("hosts=['nqn.2026-11.org.example:h']"), Vec::<String>::new());
    let warnings = config("allow_any_host=true");
    let parts = ["/x/node.toml:2: subsystem 'nqn.2026-11.org.example:s'", "protect nothing", "'hosts' instead of"];
    parts.iter().for_each(|part| assert!(warnings[0].contains(part), "{part}: {warnings:?}"));
}
