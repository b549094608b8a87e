//! The dashboard's files, part of the program: nothing is fetched from elsewhere (design 11).

/// Type and content of a page's file.
pub(super) fn file(path: &str) -> Option<(&'static str, &'static str)> {
    Some(match path {
        "/" => ("text/html; charset=utf-8", include_str!("dashboard/index.html")),
        "/dashboard/style.css" => ("text/css; charset=utf-8", include_str!("dashboard/style.css")),
        "/dashboard/page.js" => (JS, include_str!("dashboard/page.js")),
        "/dashboard/charts.js" => (JS, include_str!("dashboard/charts.js")),
        "/dashboard/metrics.js" => (JS, include_str!("dashboard/metrics.js")),
        _ => return None,
    })
}

const JS: &str = "text/javascript; charset=utf-8";
