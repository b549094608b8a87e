//! Configuration: TOML files to raw serde types ([`Gateway`], [`Owner`], [`Placement`]), checked where they are turned into
//! what the parts of the program take.
//!
//! Unknown keys are errors that name the nearest right key and the line. Durations and sizes carry their unit ("13s",
//! "64KiB"). A variable `HOLDFAST_<SECTION>__<KEY>` overrides one key (`HOLDFAST_AUTH__JWKS=…`, `HOLDFAST__LISTEN=…` where there is no
//! section). The files in `config/` hold every key with its default, and a test keeps the two alike.

mod admission;
mod gateway;
mod load;
mod owner;
mod proxy;
mod value;

pub use admission::{Admission, LimitError, LiveLimits};
pub use gateway::{Auth, Directory, Drain, Gateway, Held, Limits, LinkTls, PlacementLink, Tls};
pub use load::{ConfigError, effective, load, load_from};
pub use owner::{Owner, Placement, PlacementList, Store, StoreKind};
pub use proxy::{Protocol, Proxy};
pub use value::{Size, Span};
