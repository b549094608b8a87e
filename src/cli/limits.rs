//! `holdfast limits`: what a running gateway admits, shown and changed (design 9.4).

use anyhow::{Context as _, ensure};
use serde_json::{Map, Value};

use super::http;

/// The limits of a running gateway.
#[derive(Debug, clap::Subcommand)]
pub(super) enum LimitsCommand {
    /// Shows them, with defaults, units and ranges.
    Get {
        #[command(flatten)]
        at: At,
        /// Only these.
        names: Vec<String>,
    },
    /// Changes some, all of them or none. No connection ends by it, and nobody gets a new burst. It holds until the gateway
    /// ends or reads its file again (SIGHUP): what should stay belongs into the file.
    Set {
        #[command(flatten)]
        at: At,
        /// As `admit_per_s=4000` or `horizon=30s`.
        #[arg(required = true, value_name = "NAME=VALUE", value_parser = change)]
        changes: Vec<(String, Value)>,
    },
}

/// Which gateway.
#[derive(Debug, clap::Args)]
pub(super) struct At {
    /// Address of its admin server.
    #[arg(long, default_value = "127.0.0.1:9090", value_name = "HOST:PORT")]
    admin: String,
    /// JSON as the server gave it.
    #[arg(long)]
    json: bool,
}

pub(super) async fn main(command: LimitsCommand) -> anyhow::Result<()> {
    match command {
        LimitsCommand::Get { at, names } => {
            let body = http::get_ok(&at.admin, "/limits").await?;
            show(&body, &at, &names)
        }
        LimitsCommand::Set { at, changes } => {
            let names: Vec<String> = changes.iter().map(|(name, _)| name.clone()).collect();
            let changes: Map<String, Value> = changes.into_iter().collect();
            let body = http::put_ok(&at.admin, "/limits", Value::Object(changes).to_string()).await?;
            show(&body, &at, &names)
        }
    }
}

fn show(body: &str, at: &At, names: &[String]) -> anyhow::Result<()> {
    if at.json {
        println!("{}", body.trim_end());
        return Ok(());
    }
    let limits: Map<String, Value> = serde_json::from_str(body).context("no object of limits")?;
    for name in names {
        ensure!(limits.contains_key(name), "{name}: no limit of that name; `holdfast limits get` names them");
    }
    println!("{:<24} {:>10} {:>10}  range", "limit", "value", "default");
    for (name, limit) in limits.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        let range = limit["unit"].as_str().map(|unit| format!("{} to {} {unit}", limit["min"], limit["max"]));
        let range = range.unwrap_or_else(|| "true or false".into());
        println!("{name:<24} {:>10} {:>10}  {range}", text(&limit["value"]), text(&limit["default"]));
    }
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), Into::into)
}

/// Numbers, true and false are what they look like; the rest is text, as a duration with its unit.
fn change(arg: &str) -> Result<(String, Value), String> {
    let (name, value) = arg.split_once('=').ok_or("NAME=VALUE is wanted, as admit_per_s=4000")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.into()));
    Ok((name.into(), value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_numbers_truths_and_durations() {
        assert_eq!(change("admit_per_s=4000"), Ok(("admit_per_s".into(), json!(4000))));
        assert_eq!(change("prefix_private=true"), Ok(("prefix_private".into(), json!(true))));
        assert_eq!(change("horizon=30s"), Ok(("horizon".into(), json!("30s"))));
        assert!(change("horizon").is_err());
    }
}
