//! Runs one scenario: `cargo run -p remuda-scenarios --example sim -- NAME SEED [LINES]`.

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, seed, rest @ ..] = &args[..] else { panic!("usage: sim NAME SEED [LINES]") };
    let tail_lines = rest.first().map_or(60, |lines| lines.parse().expect("a number of lines"));
    let options = remuda_scenarios::Options { tail_lines, ..Default::default() };
    let seed = seed.parse().expect("a seed is a number");
    println!("{}", remuda_scenarios::run(name, seed, &options).expect("a scenario of this name"));
}
