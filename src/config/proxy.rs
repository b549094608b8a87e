//! Section `[proxy]` of `gateway.toml`: whom a gateway believes about its clients' addresses.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{ConfigError, gateway::section};
use crate::transport::trust::{Header, NETWORKS_MAX, Trust};

/// Most hops: a chain longer than this is a mistake.
const HOPS_MAX: u32 = 16;

/// `proxy.protocol`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// No PROXY headers.
    #[default]
    Off,
    /// From trusted addresses, if they send one.
    Optional,
    /// From everybody.
    Required,
}

section! {
    /// Section `[proxy]` (design 10).
    Proxy {
        /// PROXY headers.
        protocol: Protocol = Protocol::Off,
        /// The balancers' networks or addresses.
        trusted: Vec<String> = Vec::new(),
        /// Values of `X-Forwarded-For` believed.
        forwarded_hops: u32 = 0,
    }
}

impl Proxy {
    /// As the listeners take it.
    ///
    /// # Errors
    /// A network that is none, or a setting that could not work without one.
    pub fn trust(&self) -> Result<Trust, ConfigError> {
        if self.trusted.len() > NETWORKS_MAX {
            return Err(ConfigError(format!("proxy.trusted: at most {NETWORKS_MAX} networks")));
        }
        if self.forwarded_hops > HOPS_MAX {
            return Err(ConfigError(format!("proxy.forwarded_hops: at most {HOPS_MAX}")));
        }
        if self.trusted.is_empty() && (self.protocol != Protocol::Off || self.forwarded_hops > 0) {
            return Err(ConfigError(
                "proxy.trusted: must name the balancers, or nobody's PROXY header or X-Forwarded-For is believed"
                    .into(),
            ));
        }
        let header = match self.protocol {
            Protocol::Off => Header::Off,
            Protocol::Optional => Header::Optional,
            Protocol::Required => Header::Required,
        };
        let networks = self.trusted.iter().map(|text| network(text)).collect::<Result<_, _>>()?;
        Ok(Trust { header, networks, forwarded_hops: usize::try_from(self.forwarded_hops).unwrap_or(0) })
    }
}

/// "10.0.0.0/8", or one address.
fn network(text: &str) -> Result<IpNet, ConfigError> {
    let bad = || ConfigError(format!("proxy.trusted: \"{text}\" is not a network (10.0.0.0/8) or an address"));
    let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).map_err(|_| bad())?;
    // 10.1.2.3/8 is more likely a mistyped prefix than meant.
    if net == net.trunc() {
        Ok(net)
    } else {
        Err(ConfigError(format!("proxy.trusted: \"{text}\": did you mean {}?", net.trunc())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(protocol: Protocol, trusted: &[&str], forwarded_hops: u32) -> Result<Trust, String> {
        let trusted = trusted.iter().map(ToString::to_string).collect();
        Proxy { protocol, trusted, forwarded_hops }.trust().map_err(|e| e.to_string())
    }

    #[test]
    fn networks_and_addresses_are_read_and_mistakes_named() {
        let good = trust(Protocol::Required, &["10.0.0.0/8", "192.0.2.1", "2001:db8::/32", "::1"], 2).unwrap();
        assert_eq!((good.header, good.networks.len(), good.forwarded_hops), (Header::Required, 4, 2));
        assert!(good.trusts("192.0.2.1".parse().unwrap()) && !good.trusts("192.0.2.2".parse().unwrap()));
        assert_eq!(trust(Protocol::Off, &[], 0).unwrap(), Trust::default());
        for (protocol, trusted, hops, says) in [
            (Protocol::Off, &["10.0.0.0/33"][..], 0, "\"10.0.0.0/33\" is not a network"),
            (Protocol::Off, &["balancer"], 0, "\"balancer\" is not a network"),
            (Protocol::Off, &["10.1.2.3/8"], 0, "did you mean 10.0.0.0/8?"),
            (Protocol::Optional, &[], 0, "must name the balancers"),
            (Protocol::Off, &[], 1, "must name the balancers"),
            (Protocol::Off, &["::1"], 17, "at most 16"),
        ] {
            let e = trust(protocol, trusted, hops).unwrap_err();
            assert!(e.starts_with("proxy.") && e.contains(says), "{e}");
        }
    }
}
