//! A report as one HTML page with plots, which loads nothing.

mod plot;

use std::fmt::Write as _;

use self::plot::{Axis, Curve, curves};
use crate::{
    Measured, Outcome, Part, Report, Times,
    report::{Cell, Table, beside, contenders, tables},
};

const STYLE: &str = include_str!("style.css");

/// A figure: its caption, its axis of times, and its curves.
struct Figure {
    caption: &'static str,
    axis: Axis,
    curves: Vec<Curve>,
}

/// Returns the page.
#[must_use]
pub fn page(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>polylock bench</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>polylock bench</h1>\n<p>{}</p>\n<p>{}</p>\n",
        escape(&report.run.headline()),
        escape(&report.run.summary()),
    );
    page += "<div class=\"scroll\"><table>\n<tr><th>store</th><th>URL</th><th>raw driver</th></tr>\n";
    for store in &report.stores {
        let raw = store.raw_text();
        let cells = [&store.label, &store.store, &raw].map(|text| format!("<td>{}</td>", escape(text)));
        writeln!(page, "<tr>{}</tr>", cells.concat()).ok();
    }
    page += "</table></div>\n";
    for (part, tables) in tables(report) {
        for table in &tables {
            page += &table_with_notes(table);
        }
        page += &figures(report, part).iter().map(figure).collect::<String>();
    }
    page + "</body>\n</html>\n"
}

fn table_with_notes(table: &Table) -> String {
    let mut html = format!("<h2>{}</h2>\n", escape(&table.title));
    if !table.rows.is_empty() {
        let class = |at: usize| if at < table.names() { " class=\"name\"" } else { "" };
        let head = table.columns.iter().enumerate();
        let head: String =
            head.map(|(at, column)| format!("<th{}>{}</th>", class(at), escape(column))).collect();
        writeln!(html, "<div class=\"scroll\"><table class=\"numbers\">\n<tr>{head}</tr>").ok();
        for row in &table.rows {
            let cell =
                |(at, cell): (usize, &Cell)| format!("<td{}>{}</td>", class(at), escape(cell.as_str()));
            writeln!(html, "<tr>{}</tr>", row.iter().enumerate().map(cell).collect::<String>()).ok();
        }
        html += "</table></div>\n";
    }
    html + &table
        .notes
        .iter()
        .map(|note| format!("<p class=\"note\">{}</p>\n", escape(note)))
        .collect::<String>()
}

/// Returns the figures of a part.
fn figures(report: &Report, part: Part) -> Vec<Figure> {
    let measured = report.stores.iter().filter_map(|store| match store.outcome(part) {
        Some(Outcome::Measured(measured)) => Some((store.label.as_str(), &**measured)),
        _ => None,
    });
    let measured: Vec<_> = measured.collect();
    let mut figures = vec![Figure { caption: caption(part), axis: Axis::Logarithmic, curves: Vec::new() }];
    if part == Part::Contended {
        let caption =
            "Time from a request to its grant: the share of the acquisitions that waited no longer.";
        figures.push(Figure { caption, axis: Axis::Logarithmic, curves: Vec::new() });
    }
    for (store, measured) in measured {
        let mut add = |figure: usize, name: &str, times: &Times, is_dashed: bool| {
            if !times.is_empty() {
                let name = format!("{store} {name}");
                figures[figure].curves.push(Curve::of(name.trim(), times, is_dashed));
            }
        };
        match measured {
            Measured::Uncontended(pairs) => {
                add(0, "", &pairs.polylock, false);
                pairs.raw.iter().for_each(|raw| add(0, "raw", raw, true));
            }
            Measured::OwnLocks(own) => {
                add(0, "", &own.polylock.times, false);
                own.raw.iter().for_each(|raw| add(0, "raw", &raw.times, true));
            }
            Measured::HandOver(hand_over) => {
                add(0, "to a task", &hand_over.to_task, false);
                hand_over.to_process.iter().for_each(|times| add(0, "to a process", times, true));
            }
            Measured::Contended(contended) => {
                for (number, (contenders, summary)) in contenders(contended).into_iter().enumerate() {
                    add(0, &contenders, &summary.hand_over, number > 0);
                    add(1, &contenders, &summary.wait, number > 0);
                }
            }
            Measured::Waiters(waiters) => {
                for (number, (state, times)) in beside(waiters).into_iter().enumerate() {
                    add(0, state, times, number > 0);
                }
            }
            Measured::Held(_) => {}
            Measured::Kill(kills) => {
                add(0, "", &kills.times.iter().copied().collect(), false);
                figures[0].axis = Axis::Linear;
            }
        }
    }
    figures.retain(|figure| !figure.curves.is_empty());
    figures
}

const fn caption(part: Part) -> &'static str {
    match part {
        Part::Uncontended => {
            "Time of a pair: the share of the pairs that took no longer. Raw is the driver without polylock."
        }
        Part::OwnLocks => "Time of a pair while all tasks work: the share of the pairs that took no longer.",
        Part::HandOver => {
            "Time from a release to the next grant: the share of the hand-overs that took no longer."
        }
        Part::Contended => {
            "Time from a release to the next grant under contention: the share of the hand-overs that took no longer."
        }
        Part::Waiters => {
            "Time of a pair on a free lock of the same process: the share of the pairs that took no longer."
        }
        Part::Held => "",
        Part::Kill => {
            "Time from a kill to the next grant: the share of the kills after which the lock was free by then."
        }
    }
}

fn figure(figure: &Figure) -> String {
    match curves(figure.axis, &figure.curves) {
        Ok(svg) => format!("<figure>\n{svg}<figcaption>{}</figcaption>\n</figure>\n", escape(figure.caption)),
        Err(error) => format!("<p class=\"note\">The plot failed: {}.</p>\n", escape(&error)),
    }
}

/// Returns the text without characters that have a meaning in HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn a_page_loads_nothing_and_escapes_all_text() {
        let mut report = example();
        report.stores[0].store = "redis://<b>'\"&".to_owned();
        let page = page(&report);
        for reference in ["http", "src=", "href=", "url(", "@import", "<script", "<link", "<b>"] {
            assert!(!page.contains(reference), "{reference}: {page}");
        }
        assert!(page.contains("redis://&lt;b&gt;&#39;&quot;&amp;"), "{page}");
        assert_eq!(page.matches("<svg").count(), 2, "pairs and kills");
        assert!(page.matches("<polyline").count() >= 3, "two curves of pairs, one of kills");
        for text in
            ["Uncontended", "1.00 ms", "2.00 x", "redis raw", "failed: the raw driver has failed: gone"]
        {
            assert!(page.contains(text), "{text}: {page}");
        }
    }
}
