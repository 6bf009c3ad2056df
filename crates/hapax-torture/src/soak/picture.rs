//! The curves of a soak as an SVG picture: a panel for memory, open files and the store's size each.

use std::fmt::Write;

use super::curve::{Curve, CurveKind};

const WIDTH: f64 = 760.0;
const PANEL: f64 = 200.0;
const LEFT: f64 = 90.0;
const COLOURS: [&str; 6] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"];

pub(super) fn draw(curves: &[Curve], title: &str) -> String {
    let height = 40.0 + CurveKind::ALL.len() as f64 * (PANEL + 50.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">{title}</text>\n",
        LEFT + WIDTH + 130.0
    );
    for (number, kind) in CurveKind::ALL.into_iter().enumerate() {
        let top = 60.0 + number as f64 * (PANEL + 50.0);
        let of_kind: Vec<&Curve> = curves.iter().filter(|curve| curve.kind == kind).collect();
        draw_panel(&mut svg, kind, &of_kind, top);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, kind: CurveKind, curves: &[&Curve], top: f64) {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let end = points().map(|(at, _)| *at).fold(1.0, f64::max);
    let most = points().map(|(_, value)| *value).fold(1.0, f64::max) * 1.1;
    let bottom = top + PANEL;
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\">{}</text>", top - 6.0, kind.name());
    for part in 0..=4 {
        let share = f64::from(part) / 4.0;
        let y = bottom - share * PANEL;
        let (right, label) = (LEFT + WIDTH, kind.show(most * share));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            y + 4.0
        );
        let x = LEFT + share * WIDTH;
        let minutes = end * share / 60.0;
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{minutes:.1} min</text>",
            bottom + 16.0
        );
    }
    for (number, curve) in curves.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let line: Vec<String> = curve
            .points
            .iter()
            .map(|(at, value)| {
                format!("{:.1},{:.1}", LEFT + at / end * WIDTH, bottom - value / most * PANEL)
            })
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>\
             <text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>",
            line.join(" "),
            LEFT + WIDTH + 8.0,
            top + 14.0 + number as f64 * 16.0,
            curve.name
        );
    }
}
