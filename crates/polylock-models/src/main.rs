//! Prints the bounds, the states and the twins of the models as Markdown: of all, or of those that are named.

use std::env;

use polylock_models::{MODELS, check::Report};

fn main() {
    let named: Vec<String> = env::args().skip(1).collect();
    let is_chosen = |name: &str| named.is_empty() || named.iter().any(|chosen| chosen == name);
    let chosen = MODELS.iter().filter(|(name, _)| is_chosen(name));
    let reports: Vec<Report> = chosen.map(|(_, check)| check()).collect();
    println!("| model | bounds | states | depth | seconds |\n|---|---|---|---|---|");
    for Report { model, bounds, states, depth, seconds, .. } in &reports {
        println!("| {model} | {bounds} | {states} | {depth} | {seconds:.1} |");
    }
    println!("\n| model | planted bug | violates | steps |\n|---|---|---|---|");
    for report in &reports {
        for twin in &report.twins {
            println!("| {} | {} | {} | {} |", report.model, twin.bug, twin.property, twin.steps);
        }
    }
}
