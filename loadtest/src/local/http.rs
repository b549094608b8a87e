//! The few GETs a run needs (health, readiness, metrics), and quantiles of Prometheus histograms.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Status and body. HTTP/1.0: the body ends with the connection.
pub async fn get(addr: &str, path: &str) -> anyhow::Result<(u16, String)> {
    let asking = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let status = text.split_whitespace().nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status, body.to_owned()))
    };
    tokio::time::timeout(Duration::from_secs(5), asking).await?
}

pub async fn is_ok(addr: &str, path: &str) -> bool {
    get(addr, path).await.is_ok_and(|(status, _)| status == 200)
}

/// Sum of a counter or gauge over its labels; `None`: no such metric.
pub fn total(text: &str, name: &str) -> Option<f64> {
    let values = text.lines().filter(|l| !l.starts_with('#')).filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let metric = series.split('{').next()?;
        (metric == name).then(|| value.parse::<f64>().ok()).flatten()
    });
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// Upper bound of the bucket that holds quantile `q` of a histogram, in its own unit, over all labels and texts.
pub fn quantile(texts: &[String], name: &str, q: f64) -> Option<f64> {
    let bucket = format!("{name}_bucket");
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    for line in texts.iter().flat_map(|t| t.lines()).filter(|l| l.starts_with(&bucket)) {
        let (series, count) = line.rsplit_once(' ')?;
        let bound = series.split("le=\"").nth(1)?.split('"').next()?;
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
        let count: f64 = count.parse().ok()?;
        match buckets.iter_mut().find(|(b, _)| *b == bound) {
            Some(at) => at.1 += count,
            None => buckets.push((bound, count)),
        }
    }
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all = buckets.last().filter(|(_, n)| *n > 0.0)?.1;
    buckets.iter().find(|(_, n)| *n >= q * all).map(|(bound, _)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_add_up_over_labels() {
        let text = "# TYPE up histogram\nup_bucket{k=\"a\",le=\"0.1\"} 98\nup_bucket{k=\"a\",le=\"+Inf\"} 100\n\
                    up_bucket{k=\"b\",le=\"0.1\"} 90\nup_bucket{k=\"b\",le=\"+Inf\"} 100\nn_total{x=\"1\"} 3\nn_total{x=\"2\"} 4\n";
        let texts = [text.to_owned()];
        assert_eq!(quantile(&texts, "up", 0.5), Some(0.1));
        assert_eq!(quantile(&texts, "up", 0.99), Some(f64::INFINITY));
        assert_eq!(quantile(&texts, "down", 0.5), None);
        assert_eq!((total(text, "n_total"), total(text, "m_total")), (Some(7.0), None));
    }
}
