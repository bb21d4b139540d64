//! The report as one HTML page, which loads nothing.

use super::report::{Report, Row};

const TEMPLATE: &str = include_str!("report.html");

/// Returns the page.
pub(super) fn page(report: &Report) -> String {
    let mut rows = String::new();
    let mut part = "";
    for row in &report.rows {
        if row.part != part {
            part = row.part;
            rows += &format!("<tr><th colspan=\"3\">{}</th></tr>\n", escape(part));
        }
        rows += &line(row);
    }
    let values = [
        ("{store}", escape(&report.store)),
        ("{version}", escape(env!("CARGO_PKG_VERSION"))),
        ("{time}", escape(&crate::wall_clock::timestamp())),
        ("{verdict}", report.verdict().word().to_owned()),
        ("{summary}", escape(&report.summary())),
    ];
    let (head, tail) = TEMPLATE.split_once("{rows}").unwrap_or((TEMPLATE, ""));
    let fill =
        |text: &str| values.iter().fold(text.to_owned(), |text, (key, value)| text.replace(key, value));
    fill(head) + &rows + &fill(tail)
}

fn line(row: &Row) -> String {
    let advice = row.advice.as_ref().map_or_else(String::new, |advice| format!("<p>{}</p>", escape(advice)));
    let word = row.outcome.word();
    format!(
        "<tr><td>{}</td><td class=\"{word}\">{word}</td><td>{}{advice}</td></tr>\n",
        escape(&row.name),
        escape(&row.value)
    )
}

/// Returns the text without characters that have a meaning in HTML. A placeholder of the template in a value is text.
fn escape(text: &str) -> String {
    polylock_bench::html::escape(text).replace('{', "&#123;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_escapes_all_text_and_fills_all_placeholders() {
        let row =
            Row { advice: Some("<script>'x'".to_owned()), ..Row::ok("a part", "{rows}", "1 < 2 & \"3\"") };
        let report = Report {
            store: "redis://{summary}".to_owned(),
            backend: "redis",
            seed: 7,
            duration_ms: 10,
            rows: vec![row],
        };
        let page = page(&report);
        assert!(page.contains("<td>&#123;rows}</td><td class=\"ok\">ok</td><td>1 &lt; 2 &amp; &quot;3&quot;<p>&lt;script&gt;&#39;x&#39;</p></td>"), "{page}");
        assert!(page.contains("redis://&#123;summary}") && !page.contains("<script"), "{page}");
        for key in ["{store}", "{version}", "{time}", "{verdict}", "{summary}", "{rows}"] {
            assert!(!page.contains(key), "{key}");
        }
    }
}
