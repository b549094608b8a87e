//! A file and the environment to a raw configuration, with errors that say where and what would be right.

use std::{fmt, path::Path};

use serde::{Serialize, de::DeserializeOwned};
use toml::{Table, Value};

/// Prefix of the variables that override keys. Variables without a `__` after it (`HOLDFAST_LOG`) are none of ours.
const ENV_PREFIX: &str = "HOLDFAST_";
/// Above this edit distance a name is not suggested: "lisen" to "listen" is 1, "port" to "listen" is 5.
const SUGGEST_DISTANCE_MAX: usize = 3;

/// Why a configuration was refused: one message for a person, with file and line where there are any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// Reads `path` (none: the defaults) and applies the environment.
///
/// # Errors
/// The file cannot be read or is not valid for `T`, or a variable is not.
pub fn load<T: DeserializeOwned>(path: Option<&Path>) -> Result<T, ConfigError> {
    let (text, name) = match path {
        None => (String::new(), String::from("(defaults)")),
        Some(p) => {
            let text =
                std::fs::read_to_string(p).map_err(|e| ConfigError(format!("{}: cannot be read: {e}", p.display())))?;
            (text, p.display().to_string())
        }
    };
    load_from(&text, &name, std::env::vars())
}

/// As [`load`], from text called `name` and the given variables.
///
/// # Errors
/// The text or a variable is not valid for `T`.
pub fn load_from<T: DeserializeOwned>(
    text: &str,
    name: &str,
    vars: impl IntoIterator<Item = (String, String)>,
) -> Result<T, ConfigError> {
    // The text alone first: its errors then have a line.
    let from_text = toml::from_str::<T>(text).map_err(|e| ConfigError(describe(name, text, &e)))?;
    let mut table: Table = text.parse().map_err(|e: toml::de::Error| ConfigError(describe(name, text, &e)))?;
    let mut result = from_text;
    for (variable, value) in vars {
        let ours = variable
            .strip_prefix(ENV_PREFIX)
            .map(|v| v.strip_prefix('_').map_or(v.split_once("__"), |k| Some(("", k))));
        let Some(Some((section, key))) = ours else { continue };
        let (section, key) = (section.to_lowercase(), key.to_lowercase());
        if section.is_empty() {
            table.insert(key, env_value(&value));
        } else if let Value::Table(t) = table.entry(section).or_insert_with(|| Value::Table(Table::new())) {
            t.insert(key, env_value(&value));
        }
        result = table.clone().try_into().map_err(|e: toml::de::Error| {
            ConfigError(format!("variable {variable}=\"{value}\": {}", suggest(e.message())))
        })?;
    }
    Ok(result)
}

/// The whole configuration as TOML, defaults and overrides included.
///
/// # Errors
/// A value has no form in TOML (none of ours).
pub fn effective<T: Serialize>(config: &T) -> Result<String, ConfigError> {
    toml::to_string_pretty(config).map_err(|e| ConfigError(e.to_string()))
}

/// `8` and `true` and `["a"]` are what they are in TOML; everything else is text.
fn env_value(text: &str) -> Value {
    format!("v = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut t| t.remove("v"))
        .unwrap_or_else(|| Value::String(text.into()))
}

fn describe(name: &str, text: &str, error: &toml::de::Error) -> String {
    let message = suggest(error.message());
    let Some(span) = error.span() else { return format!("{name}: {message}") };
    let before = &text[..span.start.min(text.len())];
    let line = before.matches('\n').count();
    let source = text.lines().nth(line).unwrap_or_default().trim();
    format!("{name}:{}: `{source}`: {message}", line + 1)
}

/// Adds the nearest right name to serde's "unknown field".
fn suggest(message: &str) -> String {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let Some((wrong, right)) = names.split_first() else { return message.trim().into() };
    if !message.starts_with("unknown field") && !message.starts_with("unknown variant") {
        return message.trim().into();
    }
    let nearest = right.iter().map(|r| (distance(wrong, r), r)).min();
    match nearest {
        Some((d, right)) if d <= SUGGEST_DISTANCE_MAX => format!("unknown name `{wrong}`; did you mean `{right}`?"),
        _ => format!("unknown name `{wrong}`; known here: {}", right.join(", ")),
    }
}

/// Levenshtein's distance of two short names.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let change = diagonal + usize::from(x != y);
            let least = change.min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], least);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};

    fn gateway(text: &str, vars: &[(&str, &str)]) -> Result<Gateway, ConfigError> {
        load_from(text, "gw.toml", vars.iter().map(|(k, v)| ((*k).into(), (*v).into())))
    }

    #[test]
    fn an_unknown_key_names_the_nearest_and_the_line() {
        let e = gateway("listen = \"127.0.0.1:1\"\n\n[auth]\njwsk = \"keys.json\"\n", &[]).unwrap_err();
        assert_eq!(e.0, "gw.toml:4: `jwsk = \"keys.json\"`: unknown name `jwsk`; did you mean `jwks`?");
        let e = gateway("lisen = \"127.0.0.1:1\"\n", &[]).unwrap_err();
        assert!(e.0.starts_with("gw.toml:1:") && e.0.ends_with("did you mean `listen`?"), "{e}");
        let e = gateway("[atuh]\n", &[]).unwrap_err();
        assert!(e.0.contains("did you mean `auth`?"), "{e}");
        let e = gateway("[tls]\nfrobnicate = 1\n", &[]).unwrap_err();
        assert!(e.0.contains("known here: cert, key"), "{e}");
    }

    #[test]
    fn a_wrong_unit_names_key_value_and_units() {
        let e = gateway("\n[drain]\nmax = \"60parsecs\"\n", &[]).unwrap_err();
        assert!(e.0.starts_with("gw.toml:3: `max = \"60parsecs\"`"), "{e}");
        assert!(e.0.contains("us, ms, s, min, h"), "{e}");
        let e = gateway("[drain]\nmax = 60\n", &[]).unwrap_err();
        assert!(e.0.contains("\"60\" has no unit"), "{e}");
    }

    #[test]
    fn the_environment_overrides_one_key_and_only_ours() {
        let vars = [("HOLDFAST_AUTH__JWKS", "b.json"), ("HOLDFAST_LOG", "debug"), ("HOLDFAST__ADMIT_PER_S", "7")];
        let c = gateway("[auth]\njwks = \"a.json\"\n", &vars).unwrap();
        assert_eq!((c.auth.jwks.as_str(), c.admit_per_s), ("b.json", 7));
        let c = gateway("", &[("HOLDFAST_DIRECTORY__ENDPOINTS", "[\"http://a:1\", \"http://b:2\"]")]).unwrap();
        assert_eq!(c.directory.endpoints, ["http://a:1", "http://b:2"]);
        let e = gateway("", &[("HOLDFAST_AUTH__JWSK", "x")]).unwrap_err();
        assert!(e.0.contains("HOLDFAST_AUTH__JWSK") && e.0.contains("`jwks`"), "{e}");
    }

    #[test]
    fn the_files_in_config_hold_the_defaults_and_every_key() {
        fn same<T>(name: &str, text: &str)
        where
            T: DeserializeOwned + Serialize + Default + PartialEq + fmt::Debug,
        {
            let read: T = load_from(text, name, []).unwrap();
            assert_eq!(read, T::default(), "{name}");
            let keys = |t: &str| t.parse::<Table>().unwrap();
            assert_eq!(keys(text), keys(&effective(&T::default()).unwrap()), "{name}: a key is missing");
        }
        same::<Gateway>("gateway.toml", include_str!("../../config/gateway.toml"));
        same::<Owner>("owner.toml", include_str!("../../config/owner.toml"));
        same::<Placement>("placement.toml", include_str!("../../config/placement.toml"));
    }
}
