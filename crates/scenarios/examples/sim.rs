//! Runs one scenario: `cargo run -p remuda-scenarios --example sim -- NAME SEED [LINES [MUTATION]]`, or `NAME FROM..TO` up to
//! the first seed that fails.

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, seeds, rest @ ..] = &args[..] else { panic!("usage: sim NAME SEED|FROM..TO [LINES [MUTATION]]") };
    let tail_lines = rest.first().map_or(60, |lines| lines.parse().expect("a number of lines"));
    let mutation = rest.get(1).map(|name| {
        let known = sim::Mutation::ALL.into_iter().find(|mutation| format!("{mutation:?}") == *name);
        known.expect("a mutation of this name")
    });
    let options = remuda_scenarios::Options { tail_lines, mutation };
    let number = |text: &str| text.parse::<u64>().expect("a seed is a number");
    let run = |seed| remuda_scenarios::run(name, seed, &options).expect("a scenario of this name");
    let Some((from, to)) = seeds.split_once("..") else { return println!("{}", run(number(seeds))) };
    let begun = std::time::Instant::now();
    for seed in number(from)..number(to) {
        let outcome = run(seed);
        if !outcome.is_ok() {
            println!("{outcome}");
            std::process::exit(1);
        }
    }
    let rate = (number(to) - number(from)) as f64 * 60.0 / begun.elapsed().as_secs_f64();
    println!("{name}: seeds {seeds} hold, {rate:.0} per minute");
}
