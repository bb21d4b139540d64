//! The web console: one page with its style and its script, which uses the API as any other client.

use axum::{
    Router,
    http::{HeaderName, HeaderValue, header},
    response::IntoResponse,
    routing::get,
};

/// No resource from elsewhere, no script in the page, and no other page around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the routes of the console. It contains nothing that is secret, so it needs no caller.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/", get(|| page("text/html; charset=utf-8", include_str!("index.html"))))
        .route("/console.css", get(|| page("text/css; charset=utf-8", include_str!("console.css"))))
        .route("/console.js", get(|| page("text/javascript; charset=utf-8", include_str!("console.js"))))
}

async fn page(kind: &'static str, text: &'static str) -> impl IntoResponse {
    let fixed = HeaderValue::from_static;
    let headers: [(HeaderName, HeaderValue); 5] = [
        (header::CONTENT_TYPE, fixed(kind)),
        (header::CONTENT_SECURITY_POLICY, fixed(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
        (header::REFERRER_POLICY, fixed("no-referrer")),
        // A new version of the server has a new page.
        (header::CACHE_CONTROL, fixed("no-cache")),
    ];
    (headers, text)
}
