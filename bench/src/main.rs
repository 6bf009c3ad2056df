//! What hapax costs beside the raw engine, in one run.
fn main() {}
