//! Curves of cumulative distributions, as SVG in a page.

use std::time::Duration;

use plotters::{
    coord::ranged1d::{Ranged, ValueFormatter},
    element::DashedPathElement,
    prelude::*,
};

use crate::{Times, report::units};

const SIZE: (u32, u32) = (960, 340);
const FONT: (&str, i32) = ("system-ui, sans-serif", 14);
/// The most points of a curve: more can't be distinguished, and make the page large.
const POINTS: usize = 400;
const GREY: RGBColor = RGBColor(0x59, 0x63, 0x6e);
const LIGHT: RGBColor = RGBColor(0xe3, 0xe7, 0xeb);
/// Colours that people with colour blindness distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x00, 0x00),
];

/// The axis of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    Linear,
    Logarithmic,
}

/// One curve: times in seconds, each with the share of all times that are not longer.
#[derive(Debug)]
pub(super) struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
    is_dashed: bool,
}

impl Curve {
    /// Returns the cumulative distribution of times.
    pub(super) fn of(name: &str, times: &Times, is_dashed: bool) -> Self {
        let steps = times.cumulative();
        let every = steps.len().div_ceil(POINTS).max(1);
        let is_kept = |at: usize| at.is_multiple_of(every) || at + 1 == steps.len();
        let kept = steps.iter().enumerate().filter(|(at, _)| is_kept(*at));
        let points = kept.map(|(_, (time, share))| (time.as_secs_f64(), *share));
        // The curve begins at the bottom.
        let first = (times.min().as_secs_f64(), 0.0);
        Self { name: name.to_owned(), points: [first].into_iter().chain(points).collect(), is_dashed }
    }
}

/// Returns a plot of the curves as an element `svg`.
///
/// # Errors
/// The text of the library's error.
pub(super) fn curves(axis: Axis, curves: &[Curve]) -> Result<String, String> {
    let times = || curves.iter().flat_map(|curve| &curve.points).map(|(time, _)| *time);
    let (least, most) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    let svg = match axis {
        Axis::Linear => draw(curves, 0.0..most * 1.05),
        Axis::Logarithmic => draw(curves, (least.max(1e-9) / 1.3..most * 1.3).log_scale()),
    };
    // In a page, the element has its namespace without this attribute, and the page has no address of another server.
    Ok(svg?.replace(" xmlns=\"http://www.w3.org/2000/svg\"", ""))
}

fn draw<X>(curves: &[Curve], times: X) -> Result<String, String>
where
    X: plotters::coord::ranged1d::AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let mut chart = ChartBuilder::on(&root)
            .margin(10)
            .x_label_area_size(32)
            .y_label_area_size(52)
            .build_cartesian_2d(times, 0.0..1.0)
            .map_err(|error| failed(&error))?;
        let grey = |font: (&'static str, i32)| font.into_font().color(&GREY);
        chart
            .configure_mesh()
            .axis_style(GREY)
            .bold_line_style(LIGHT)
            .light_line_style(WHITE)
            .max_light_lines(1)
            .x_labels(8)
            .y_labels(5)
            .label_style(grey(FONT))
            .x_label_formatter(&|seconds| units::time(Duration::from_secs_f64(seconds.max(0.0))))
            .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
            .draw()
            .map_err(|error| failed(&error))?;
        for (number, curve) in curves.iter().enumerate() {
            let style = COLOURS[number % COLOURS.len()].stroke_width(2);
            let points = || curve.points.iter().copied();
            let name = curve.name.as_str();
            if curve.is_dashed {
                let (size, gap) = (7, 4);
                let drawn = chart.draw_series(DashedLineSeries::new(points(), size, gap, style));
                let drawn = drawn.map_err(|error| failed(&error))?.label(name);
                drawn.legend(move |(x, y)| DashedPathElement::new([(x, y), (x + 18, y)], size, gap, style));
            } else {
                let drawn = chart.draw_series(LineSeries::new(points(), style));
                let drawn = drawn.map_err(|error| failed(&error))?.label(name);
                drawn.legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.85))
            .border_style(LIGHT)
            .label_font(FONT)
            .draw()
            .map_err(|error| failed(&error))?;
        root.present().map_err(|error| failed(&error))?;
    }
    Ok(svg)
}
