//! The file of the fleet's keys, read at the start and again when it changes (design 9.3, 14).

use std::{path::PathBuf, time::SystemTime};

use holdfast_core::admission::FleetKeys;

use crate::gateway::admission::{
    Gate,
    keys::{self, KeysError},
};

/// The file as it was last seen.
pub(super) struct KeysFile {
    path: Option<PathBuf>,
    seen: Option<(SystemTime, u64)>,
}

impl KeysFile {
    /// Reads the file; without one, keys of this process alone.
    pub(super) fn open(path: Option<PathBuf>) -> Result<(Self, FleetKeys), KeysError> {
        let keys = match &path {
            Some(path) => keys::read(path)?,
            None => {
                tracing::warn!(
                    "no [admission] keys_file: slot tickets and resume tokens are good at this gateway only, until it ends"
                );
                keys::own()
            }
        };
        let seen = path.as_ref().and_then(|p| look(std::fs::metadata(p)));
        Ok((Self { path, seen }, keys))
    }

    /// Reads it again if it changed. On a mistake the old keys stay in use.
    pub(super) async fn tick(&mut self, gate: &Gate) {
        let Some(path) = &self.path else { return };
        let now = look(tokio::fs::metadata(path).await);
        if now.is_none() || now == self.seen {
            return;
        }
        self.seen = now;
        match keys::read(path) {
            Ok(keys) => {
                gate.set_keys(keys);
                tracing::info!("fleet keys read again");
            }
            Err(e) => tracing::warn!(error = %e, "the old fleet keys stay in use"),
        }
    }
}

fn look(metadata: std::io::Result<std::fs::Metadata>) -> Option<(SystemTime, u64)> {
    metadata.ok().and_then(|m| Some((m.modified().ok()?, m.len())))
}
