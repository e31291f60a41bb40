//! The figure of `remuda bench wsr-table`: writes of each row on a logarithmic scale, one panel for each amount of flash.

use super::Cell;
use super::report::rate_of;
use super::rows::ROWS;
use super::stack::{Column, Setting};
use std::fmt::Write;

const WIDTH: f64 = 1056.0;
const PANEL: f64 = 290.0;
const BAR: f64 = 20.0;
/// From 1 MB/s to 1000 MB/s per job.
const DECADES: f64 = 3.0;
const COLORS: [&str; 4] = ["#8a8a8a", "#3f6fb5", "#8fc7b0", "#1b7f5c"];

fn height(rate: f64) -> f64 {
    (rate.max(1.0).log10() / DECADES).clamp(0.01, 1.0) * (PANEL - 110.0)
}

pub fn draw(cells: &[Cell]) -> String {
    let shown = |setting: &Setting| cells.iter().any(|cell| cell.setting == *setting);
    let settings: Vec<Setting> = Setting::ALL.into_iter().filter(shown).collect();
    let tall = PANEL * settings.len() as f64 + 50.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {tall}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{tall}\" fill=\"white\"/>\n"
    );
    let mut text = |x: f64, y: f64, anchor: &str, size: u32, words: &str| {
        let _ = writeln!(
            out,
            "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{words}</text>"
        );
    };
    let mut shapes = String::new();
    text(WIDTH / 2.0, 22.0, "middle", 15, "Writes per job, MB/s (models, logarithmic; higher is better)");
    for (panel, setting) in settings.into_iter().enumerate() {
        let base = 40.0 + panel as f64 * PANEL + PANEL - 60.0;
        let title = match setting {
            Setting::Published => "as published: raw flash per user byte 1.10, shaping 1.375",
            Setting::EqualFlash => "the same raw flash for all: 1.375 per user byte",
            Setting::Zones => "the same raw flash for all: 1.10 per user byte, as zones for shaping",
            Setting::EqualZones => "the same raw flash for all: 1.375 per user byte, as zones for shaping",
        };
        text(WIDTH / 2.0, base - PANEL + 90.0, "middle", 13, title);
        for decade in 0..=DECADES as u32 {
            let rate = 10f64.powi(decade as i32);
            text(44.0, base - height(rate) + 4.0, "end", 11, &format!("{rate:.0}"));
        }
        let _ = writeln!(shapes, "<line x1=\"50\" y1=\"{base}\" x2=\"{WIDTH}\" y2=\"{base}\" stroke=\"black\"/>");
        for (index, row) in ROWS.iter().enumerate() {
            let left = 56.0 + index as f64 * 90.0;
            text(left + BAR * 2.0, base + 15.0, "middle", 11, &row.number.to_string());
            for (line, load) in row.loads().iter().enumerate() {
                text(left + BAR * 2.0, base + 27.0 + line as f64 * 10.0, "middle", 8, load);
            }
            let of_row = cells.iter().filter(|cell| cell.row == index && cell.setting == setting);
            for cell in of_row {
                let place = Column::ALL.iter().position(|column| *column == cell.column).unwrap_or(0);
                let rate = rate_of(cell).0;
                let (x, tall) = (left + place as f64 * BAR, height(rate));
                let _ = writeln!(
                    shapes,
                    "<rect x=\"{x:.0}\" y=\"{:.1}\" width=\"{:.0}\" height=\"{tall:.1}\" fill=\"{}\"/>",
                    base - tall,
                    BAR - 3.0,
                    COLORS[place]
                );
                let words = if rate < 20.0 { format!("{rate:.1}") } else { format!("{rate:.0}") };
                text(x + (BAR - 3.0) / 2.0, base - tall - 3.0, "middle", 9, &words);
            }
        }
    }
    for (index, column) in Column::ALL.into_iter().enumerate() {
        let x = 70.0 + index as f64 * 220.0;
        let y = tall - 24.0;
        let _ =
            writeln!(shapes, "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"12\" height=\"12\" fill=\"{}\"/>", COLORS[index]);
        text(x + 18.0, y + 10.0, "start", 12, column.name());
    }
    let _ = writeln!(out, "{shapes}</svg>");
    out
}
