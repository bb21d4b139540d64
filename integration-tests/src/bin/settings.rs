//! Runs the whole conformance suite under each setting of a server alone.
//!
//! ```text
//! cargo run -p polylock-integration-tests --bin settings -- STORE [PART OF A SETTING]
//! ```

use std::{env, error::Error, process::ExitCode};

use polylock_integration_tests::settings::{LANES, Lane};

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let stores = LANES.map(|lane| lane.store).join(", ");
    let (store, part) = match &arguments[..] {
        [store] => (store, ""),
        [store, part] => (store, part.as_str()),
        _ => return Err(format!("settings STORE [PART OF A SETTING]; stores: {stores}").into()),
    };
    let lane = Lane::of(store).ok_or_else(|| format!("there is no {store:?}; stores: {stores}"))?;
    let mut failures = 0_u32;
    for setting in lane.settings() {
        let name = [&setting.set[..], &setting.sql[..]].concat().join(", ");
        if !name.contains(part) {
            continue;
        }
        match lane.check(&setting).await {
            Ok(()) => println!("{}  {name}", if setting.refused.is_some() { "refused" } else { "ok     " }),
            Err(problem) => {
                failures += 1;
                println!("FAILED   {name}\n{problem}");
            }
        }
    }
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
