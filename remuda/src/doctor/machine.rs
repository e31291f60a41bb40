//! The kernel, limits, cores, memory and clocks.

use super::Finding;
use super::view::View;
use crate::clock::seconds_now;
use crate::config::{Config, DeviceParams};
use crate::{open_files, sys};
use base::{ByteSize, Errno};
use reactor::linux::LinuxDriver;
use std::time::Duration;

/// A clock that takes longer to read costs more than the work that is measured with it.
const CLOCK_SLOW_NS: u64 = 250;
/// The machine's clock is wrong before this: seconds since 1970, 2025.
const CLOCK_MIN_S: u64 = 1_735_689_600;
/// How long is looked for time that the hypervisor takes away.
const STEAL_WATCH: Duration = Duration::from_millis(200);

pub(super) fn check(view: &View, config: Option<&Config>, is_running: bool) -> Vec<Finding> {
    let reactors = config.map_or(1, |config| config.node.reactors.len() as u64);
    let mut findings = vec![kernel(view, LinuxDriver::new().err())];
    findings.push(files(sys::hard_limit(libc::RLIMIT_NOFILE), config.map_or(0, open_files::needed)));
    let locked = (!sys::is_root()).then(|| sys::soft_limit(libc::RLIMIT_MEMLOCK));
    let buffers = config.map_or(64 << 20, |config| config.node.buffer_memory) * reactors;
    findings.push(locked_memory(locked, buffers));
    findings.push(cores(view, reactors));
    // A node that runs has its memory already.
    findings.push(memory(view, if is_running { 0 } else { needed_memory(config) }));
    findings.extend(swap(view));
    findings.push(clock(view, clock_read_ns()));
    findings.push(date(sys::clock_is_synchronised()));
    findings.push(steal());
    findings
}

/// io_uring is what the reactors sleep in; `refused` is why there is none.
fn kernel(view: &View, refused: Option<Errno>) -> Finding {
    let release = view.read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "of unknown version".into());
    let Some(errno) = refused else {
        return Finding::ok("kernel", format!("Linux {release}, io_uring works"));
    };
    let next = match view.number("/proc/sys/kernel/io_uring_disabled") {
        Some(1..) => "sysctl kernel.io_uring_disabled=0, and put that into /etc/sysctl.d".to_string(),
        _ if errno.0 == libc::ENOSYS && view.path("/.dockerenv").exists() => {
            "allow io_uring in the container's seccomp profile".to_string()
        }
        _ if errno.0 == libc::ENOSYS => "Linux 5.19 or newer with CONFIG_IO_URING is needed".to_string(),
        _ if errno.0 == libc::ENOMEM => "raise the limit of locked memory: ulimit -l 1024".to_string(),
        _ => "a container or security module may forbid it: allow the io_uring system calls".to_string(),
    };
    Finding::problem("kernel", format!("Linux {release} refuses io_uring: {errno}"), next)
}

/// A node raises its soft limit by itself.
fn files(limit: u64, needed: u64) -> Finding {
    let found = format!("{limit} open files allowed, {needed} may be needed");
    if limit >= needed {
        return Finding::ok("open files", found);
    }
    let next = format!(
        "ulimit -Hn {needed} before the start, LimitNOFILE={needed} in a systemd unit, or less max_connections"
    );
    Finding::problem("open files", found, next)
}

/// `limit` is `None` for a user without one.
fn locked_memory(limit: Option<u64>, buffers: u64) -> Finding {
    let size = ByteSize(buffers);
    match limit {
        Some(limit) if limit < buffers => Finding::note(
            "locked memory",
            format!("{} allowed: I/O buffers of {size} are not registered with the kernel", ByteSize(limit)),
            "nothing is lost but a little CPU per I/O; LimitMEMLOCK=infinity in a systemd unit gains it back",
        ),
        _ => Finding::ok("locked memory", format!("I/O buffers of {size} can be registered")),
    }
}

fn cores(view: &View, reactors: u64) -> Finding {
    let cores = sys::allowed_cores().len() as u64;
    if cores < reactors {
        let found = format!("{reactors} reactors, and {cores} cores to run on ({})", sys::show_cores());
        return Finding::problem("cores", found, "less reactors, or more cores for this process");
    }
    // Least of all groups around; "max PERIOD" has no quota.
    let quota = view.groups().into_iter().filter_map(|group| {
        let text = view.read(&format!("{group}/cpu.max"))?;
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    if let Some(quota) = quota.min_by(f64::total_cmp).filter(|quota| *quota < reactors as f64) {
        let found = format!("a quota of {quota:.1} cores for {reactors} reactors: they are stopped when it is used up");
        return Finding::problem(
            "cores",
            found,
            "raise the CPU limit of the container or unit, or configure less reactors",
        );
    }
    let slow: Vec<_> = sys::allowed_cores()
        .into_iter()
        .filter_map(|core| view.read(&format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor")))
        .filter(|governor| governor == "powersave")
        .collect();
    let found = format!("{cores} to run on, {reactors} wanted by reactors");
    if slow.is_empty() {
        return Finding::ok("cores", found);
    }
    let next = "for steady latencies: cpupower frequency-set -g performance";
    Finding::note("cores", format!("{found}; the frequency of {} follows their load", slow.len()), next)
}

/// What a configuration can take: buffers, memory devices, tables of connections.
fn needed_memory(config: Option<&Config>) -> u64 {
    let Some(config) = config else { return 128 << 20 };
    let devices = config.devices.iter().map(|entry| match &entry.def.params {
        DeviceParams::Mem { size, .. } => *size,
        _ => 0,
    });
    let caches = config.pools.iter().filter_map(|pool| pool.def.map_cache).sum::<u64>();
    let connections = u64::from(config.nvmf.max_connections) * (16 << 10);
    devices.sum::<u64>() + caches + connections + config.node.buffer_memory * config.node.reactors.len() as u64
}

fn memory(view: &View, needed: u64) -> Finding {
    let info = view.read("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
    };
    let Some(available) = kib("MemAvailable").map(|kib| kib << 10) else {
        return Finding::note("memory", "/proc/meminfo cannot be read", "");
    };
    let limits = view.groups().into_iter().filter_map(|group| {
        let max = view.number(&format!("{group}/memory.max"))?;
        let used = view.number(&format!("{group}/memory.current")).unwrap_or(0);
        Some(max.saturating_sub(used))
    });
    let limit = limits.min();
    let room = limit.unwrap_or(u64::MAX).min(available);
    let found = format!("{} to be had, {} may be needed", ByteSize(room >> 20 << 20), ByteSize(needed));
    if room >= needed {
        return Finding::ok("memory", found);
    }
    let next = match limit {
        Some(limit) if limit < available => "raise the memory limit of the container or unit",
        _ => "less buffer_memory, smaller memory devices, or more memory",
    };
    Finding::problem("memory", found, next)
}

fn swap(view: &View) -> Option<Finding> {
    let swaps = view.read("/proc/swaps").unwrap_or_default().lines().count().saturating_sub(1);
    let swappiness = view.number("/proc/sys/vm/swappiness").unwrap_or(60);
    (swaps > 0 && swappiness > 0).then(|| {
        let found = "memory of the node may be swapped out, and I/O that needs it waits";
        Finding::note("swap", found, "MemorySwapMax=0 in a systemd unit, or swapoff -a")
    })
}

fn clock_read_ns() -> u64 {
    const READS: u64 = 2_000;
    let begun = sys::monotonic_ns();
    let last = (0..READS).fold(begun, |_, _| sys::monotonic_ns());
    (last - begun) / READS
}

fn clock(view: &View, read_ns: u64) -> Finding {
    let directory = "/sys/devices/system/clocksource/clocksource0";
    let source = view.read(&format!("{directory}/current_clocksource")).unwrap_or_else(|| "unknown".into());
    let found = format!("source '{source}', {read_ns} ns to read");
    if read_ns <= CLOCK_SLOW_NS {
        return Finding::ok("clock", found);
    }
    let others = view.read(&format!("{directory}/available_clocksource")).unwrap_or_default();
    let better = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];
    let next = match better.iter().find(|name| others.split(' ').any(|other| other == **name) && **name != source) {
        Some(name) => format!("echo {name} > {directory}/current_clocksource"),
        None => {
            "latencies are shown too long, and each I/O costs more CPU; the hypervisor may offer another clock".into()
        }
    };
    Finding::note("clock", found, next)
}

fn date(synchronised: Option<bool>) -> Finding {
    let now = seconds_now();
    if now < CLOCK_MIN_S {
        return Finding::problem("date", "the machine's clock is years behind", "set it: timedatectl set-ntp true");
    }
    match synchronised {
        Some(false) => {
            let found = "the clock is not synchronised: log times of several machines will not agree";
            Finding::note("date", found, "timedatectl set-ntp true, or another NTP service")
        }
        _ => Finding::ok("date", "the clock is set"),
    }
}

fn steal() -> Finding {
    let (stolen, all) = sys::steal_and_total();
    std::thread::sleep(STEAL_WATCH);
    let (stolen_after, all_after) = sys::steal_and_total();
    let share = stolen_after.saturating_sub(stolen) as f64 * 100.0 / all_after.saturating_sub(all).max(1) as f64;
    if share < 5.0 {
        return Finding::ok("hypervisor", "it takes no time away");
    }
    let found = format!("it takes {share:.0} % of the time away: expect long latencies");
    Finding::note("hypervisor", found, "a machine with cores of its own")
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn view(files: &[(&str, &str)]) -> (tempfile::TempDir, View) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let view = View::below(dir.path());
        (dir, view)
    }

    #[test]
    fn a_kernel_without_io_uring_is_a_problem_with_its_cause() {
        let (_dir, sysctl) =
            view(&[("/proc/sys/kernel/io_uring_disabled", "2\n"), ("/proc/sys/kernel/osrelease", "6.8")]);
        let found = kernel(&sysctl, Some(Errno(libc::EPERM)));
        assert_eq!((found.level, found.found.contains("6.8")), (Level::Problem, true), "{found:?}");
        assert!(found.next.contains("io_uring_disabled=0"), "{found:?}");
        let (_dir, docker) = view(&[("/.dockerenv", "")]);
        assert!(kernel(&docker, Some(Errno(libc::ENOSYS))).next.contains("seccomp"));
        assert_eq!(kernel(&docker, None).level, Level::Ok);
    }

    #[test]
    fn quotas_and_limits_of_any_group_around_count() {
        let (_dir, inside) = view(&[
            ("/proc/self/cgroup", "0::/outer/inner\n"),
            ("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB\n"),
            ("/sys/fs/cgroup/outer/cpu.max", "50000 100000\n"),
            ("/sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/outer/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/outer/inner/memory.max", "max\n"),
        ]);
        let found = cores(&inside, 1);
        assert!(found.level == Level::Problem && found.found.contains("0.5 cores"), "{found:?}");
        assert_eq!(memory(&inside, 512 << 20).level, Level::Ok);
        let found = memory(&inside, 2 << 30);
        assert!(found.level == Level::Problem && found.next.contains("limit"), "{found:?}");
        let (_dir, outside) = view(&[("/proc/meminfo", "MemAvailable: 4194304 kB\n")]);
        assert_eq!(memory(&outside, 2 << 30).level, Level::Ok);
        assert!(memory(&outside, 5 << 30).next.contains("buffer_memory"));
    }

    #[test]
    fn limits_below_what_is_needed_are_named_with_the_number_to_set() {
        let found = files(20, 64);
        assert!(found.level == Level::Problem && found.next.contains("ulimit -Hn 64"), "{found:?}");
        assert_eq!(files(1 << 20, 1 << 10).level, Level::Ok);
        assert_eq!(locked_memory(Some(64 << 10), 64 << 20).level, Level::Note);
        assert_eq!(locked_memory(None, 64 << 20).level, Level::Ok);
    }

    #[test]
    fn a_slow_clock_is_noted_with_the_better_one_that_there_is() {
        let directory = "/sys/devices/system/clocksource/clocksource0";
        let (_dir, slow) = view(&[
            (&format!("{directory}/current_clocksource"), "hpet"),
            (&format!("{directory}/available_clocksource"), "tsc hpet acpi_pm"),
        ]);
        assert!(clock(&slow, 900).next.starts_with("echo tsc >"));
        assert_eq!(clock(&slow, 30).level, Level::Ok);
        assert_eq!(date(Some(false)).level, Level::Note);
    }

    #[test]
    fn swap_is_noted_where_there_is_some() {
        let (_dir, with) =
            view(&[("/proc/swaps", "Filename Type\n/swapfile file\n"), ("/proc/sys/vm/swappiness", "60")]);
        assert_eq!(swap(&with).map(|finding| finding.level), Some(Level::Note));
        let (_dir, without) = view(&[("/proc/swaps", "Filename Type\n")]);
        assert_eq!(swap(&without), None);
    }
}
