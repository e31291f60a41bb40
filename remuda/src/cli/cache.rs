//! A flash cache in words, for devices and pools; and how a warm pool gets one.

use super::exit::{Exit, Failure};
use super::output;
use crate::node::view::FlashCacheView;
use base::ByteSize;
use clap::Args;
use serde_json::{Value, json};

/// Forecasts beyond this say nothing.
const DAYS_SHOWN_MAX: f64 = 36_500.0;

/// The cache of a warm pool.
#[derive(Args)]
pub struct CacheArgs {
    /// Warm: flash device that reads of the capacity device are cached on
    #[arg(long, value_name = "DEVICE", requires = "write_budget")]
    cache: Option<String>,
    /// Warm: most bytes written to that flash device in a day
    #[arg(long, value_name = "SIZE", requires = "cache")]
    write_budget: Option<String>,
    /// Warm: what to do when that flash device is absent; nothing is lost without it
    #[arg(long, value_name = "WHAT", requires = "cache", value_parser = ["pass-through", "refuse"], default_value = "pass-through")]
    cache_missing: String,
    /// Warm: bytes that may be written to it in its life, for the forecast
    #[arg(long, value_name = "SIZE", requires = "cache")]
    endurance: Option<String>,
}

impl CacheArgs {
    /// Adds what a pool of this shape is to have to the parameters of `pool.create`; whether it has a cache.
    pub fn add_to(&self, params: &mut Value, shape: Option<&str>) -> Result<bool, Failure> {
        let is_warm = shape == Some("warm");
        let (Some(flash), Some(budget)) = (&self.cache, &self.write_budget) else {
            let missing = "a warm pool needs --cache DEVICE and --write-budget SIZE (bytes per day)";
            return if is_warm { Err(Failure::new(Exit::Usage, missing.to_string())) } else { Ok(false) };
        };
        if !is_warm {
            let message = "--cache is for warm pools; add --shape warm";
            return Err(Failure::new(Exit::Usage, message.to_string()));
        }
        params["cache"] = json!(flash);
        params["write_budget"] = json!(budget);
        params["cache_missing"] = json!(self.cache_missing);
        if let Some(endurance) = &self.endurance {
            params["endurance"] = json!(endurance);
        }
        Ok(true)
    }
}

/// What a cache does, line by line.
pub fn facts(cache: &FlashCacheView) -> Vec<(&'static str, String)> {
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let budget = cache.write_budget_bytes.max(1) as f64;
    let used = cache.written_day_bytes as f64 / budget * 100.0;
    let mut facts = vec![
        (
            "flash cache",
            format!("{}, {} of {} in use", cache.mode, size(cache.cached_bytes), size(cache.capacity_bytes)),
        ),
        ("hit ratio", hit_ratio(cache).map_or("-".to_string(), |ratio| format!("{:.1} %", ratio * 100.0))),
        (
            "written to flash",
            format!(
                "{} in 24 hours, {used:.1} % of the budget of {} a day; {} in all",
                size(cache.written_day_bytes),
                size(cache.write_budget_bytes),
                size(cache.written_total_bytes)
            ),
        ),
        ("forecast", forecast(cache)),
        (
            "admission",
            format!(
                "{} let in, {} written again, {} refused by the budget",
                size(cache.admitted_bytes),
                size(cache.readmitted_bytes),
                size(cache.refused_bytes)
            ),
        ),
        (
            "flash errors",
            format!(
                "{} of reads, {} of writes; {} not answered in time",
                output::count(cache.read_errors),
                output::count(cache.write_errors),
                output::count(cache.late)
            ),
        ),
        ("cache memory", size(cache.memory_bytes)),
    ];
    if let Some(filling) = filling(cache) {
        facts.insert(1, ("filling", filling));
    }
    facts
}

/// How fast a cache fills that is not full yet, so that few hits and many refusals are not taken for a fault.
fn filling(cache: &FlashCacheView) -> Option<String> {
    let seconds = cache.full_in_seconds?;
    let share = cache.cached_bytes as f64 * 100.0 / cache.capacity_bytes.max(1) as f64;
    Some(format!(
        "{share:.1} %; the budget gives {}/s, so that it is full in about {} at the earliest. Until then few reads hit, and what the \
         budget refuses is let in later",
        ByteSize(cache.budget_bytes_per_second() as u64),
        about(seconds)
    ))
}

/// A time to the precision of an estimate.
fn about(seconds: u64) -> String {
    match seconds {
        0..7_200 => format!("{} min", seconds.div_ceil(60)),
        7_200..172_800 => format!("{} h", seconds.div_ceil(3_600)),
        _ => format!("{} days", seconds.div_ceil(86_400)),
    }
}

/// The same in a line, for those who watch.
pub fn line(cache: &FlashCacheView) -> String {
    let hits = hit_ratio(cache).map_or("-".to_string(), |ratio| format!("{:.1} %", ratio * 100.0));
    let (written, budget) = (ByteSize(cache.written_day_bytes), ByteSize(cache.write_budget_bytes));
    let filling = cache
        .full_in_seconds
        .map_or(String::new(), |seconds| format!("filling, full in about {} at the earliest; ", about(seconds)));
    format!(
        "flash cache {}: {filling}{hits} of reads hit, {written} of {budget} written in 24 hours; {}",
        cache.mode,
        forecast(cache)
    )
}

/// The part of the bytes read that came from flash.
pub fn hit_ratio(cache: &FlashCacheView) -> Option<f64> {
    let all = cache.hit_bytes + cache.miss_bytes;
    (all > 0).then(|| cache.hit_bytes as f64 / all as f64)
}

/// How long flash will last.
pub fn forecast(cache: &FlashCacheView) -> String {
    let Some(endurance) = cache.endurance_bytes else { return "unknown: no endurance is configured".to_string() };
    let least = endurance.saturating_sub(cache.written_total_bytes) / cache.write_budget_bytes.max(1);
    let at_budget = format!("at least {least} days within the budget");
    match cache.days_left {
        Some(days) if days > DAYS_SHOWN_MAX => {
            format!("more than a hundred years at the rate of the last 24 hours, {at_budget}")
        }
        Some(days) => format!("{days:.0} days left at the rate of the last 24 hours, {at_budget}"),
        None if cache.written_day_bytes == 0 => format!("{at_budget}; nothing was written in the last 24 hours"),
        None => format!("{at_budget}; all that was ever written was written in the last 24 hours"),
    }
}
