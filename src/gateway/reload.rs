//! Certificates and keys are read again when their files change, without a restart (design 14).

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{jwks::Jwks, limits::ListenerConfig};
use crate::transport::tls::Tls;

/// How often files are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// What a file looked like: changed = different. `None` = not there.
type Look = Option<(SystemTime, u64)>;

/// Watches the files of one listener.
pub(super) struct Reload {
    tls: Option<Tls>,
    keys: Jwks,
    files: Vec<(PathBuf, Look)>,
    next: Instant,
}

impl Reload {
    pub(super) fn new(config: &ListenerConfig) -> Self {
        let tls = config.tls.iter().flat_map(|t| t.files()).map(Path::to_owned);
        let files = tls
            .chain(config.keys.file().map(Path::to_owned))
            .map(|p| (p.clone(), look(std::fs::metadata(&p))))
            .collect();
        Self { tls: config.tls.clone(), keys: config.keys.clone(), files, next: Instant::now() + EVERY }
    }

    /// Looks at the files if it is time to.
    pub(super) async fn tick(&mut self) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + EVERY;
        let mut changed = false;
        for (path, seen) in &mut self.files {
            let now = look(tokio::fs::metadata(&*path).await);
            changed |= now.is_some() && now != *seen;
            *seen = now.or(*seen);
        }
        if changed {
            self.reload();
        }
    }

    fn reload(&self) {
        if let Some(Err(e)) = self.tls.as_ref().map(Tls::reload) {
            tracing::warn!(error = %e, "the old certificate stays in use");
        }
        match self.keys.reload() {
            Ok(()) => tracing::info!("certificate and token keys read again"),
            Err(e) => tracing::warn!(error = %e, "the old token keys stay in use"),
        }
    }
}

fn look(metadata: std::io::Result<std::fs::Metadata>) -> Look {
    metadata.ok().and_then(|m| Some((m.modified().ok()?, m.len())))
}
