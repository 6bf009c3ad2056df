//! The report of `hapax doctor`, as text and as JSON.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use hapax::{Finding, Severity};
use serde_json::{Value, json};

pub(super) struct DoctorReport {
    pub(super) store: String,
    pub(super) findings: Vec<Finding>,
}

impl DoctorReport {
    pub(super) fn new(store: String) -> Self {
        Self { store, findings: Vec::new() }
    }

    pub(super) fn worst(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Fine)
    }

    /// Turns refusals of these checks into warnings.
    pub(super) fn accept(&mut self, checks: &[String]) {
        for finding in &mut self.findings {
            if finding.severity == Severity::Refuse
                && checks.iter().any(|name| name == finding.check)
            {
                finding.severity = Severity::Warn;
                finding.detail.insert_str(0, "accepted: ");
            }
        }
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// One line for a fine check, more for a failed one; a terminal alone gets the colours.
    pub(super) fn message(&self) -> String {
        let mut text = format!("hapax doctor: {}\n\n", self.store);
        let width = self.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
        for finding in &self.findings {
            let (mark, style) = mark(finding.severity);
            let Finding { check, detail, .. } = finding;
            let _ = writeln!(text, "{style}{mark}{style:#} {check:<width$}  {detail}");
            let mut more = |name: &str, value: &str| {
                if !value.is_empty() {
                    let _ = writeln!(text, "  {:width$}  {name} {value}", "");
                }
            };
            more("breaks:", finding.breaks.map_or("", |promise| promise.sentence()));
            more("fix:   ", &finding.fix);
        }
        text.push('\n');
        text.push_str(&self.summary());
        text
    }

    fn summary(&self) -> String {
        let (warn, refuse) = (self.count(Severity::Warn), self.count(Severity::Refuse));
        let many = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        match (refuse, warn) {
            (0, 0) => "nothing to fix".into(),
            (0, _) => many(warn, "warning"),
            (_, 0) => many(refuse, "refusal"),
            _ => format!("{}, {}", many(refuse, "refusal"), many(warn, "warning")),
        }
    }

    pub(super) fn json(&self) -> Value {
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|finding| {
                json!({
                    "check": finding.check,
                    "severity": word(finding.severity),
                    "detail": finding.detail,
                    "breaks": finding.breaks.map(|promise| promise.sentence()),
                    "fix": (!finding.fix.is_empty()).then_some(&finding.fix),
                })
            })
            .collect();
        json!({"store": self.store, "severity": word(self.worst()), "findings": findings})
    }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Fine => "fine",
        Severity::Warn => "warn",
        Severity::Refuse => "refuse",
    }
}

fn mark(severity: Severity) -> (&'static str, Style) {
    let style = |colour: AnsiColor| colour.on_default().bold();
    match severity {
        Severity::Fine => ("✓", style(AnsiColor::Green)),
        Severity::Warn => ("!", style(AnsiColor::Yellow)),
        Severity::Refuse => ("✗", style(AnsiColor::Red)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax::Promise;

    fn report() -> DoctorReport {
        let mut report = DoctorReport::new("redis".into());
        report.findings = vec![
            Finding::fine("reach", "answers"),
            Finding::warn("redis.aof", Promise::Durable, "everysec", "appendfsync always"),
        ];
        report
    }

    #[test]
    fn report_names_broken_promise_and_fix() {
        let text = anstream::adapter::strip_str(&report().message()).to_string();
        assert_eq!(
            text,
            "hapax doctor: redis\n\n\
             ✓ reach      answers\n\
             ! redis.aof  everysec\n             \
             breaks: what was acknowledged is not lost\n             \
             fix:    appendfsync always\n\
             \n1 warning"
        );
    }

    #[test]
    fn report_severity_is_that_of_the_worst_finding() {
        assert_eq!(report().worst(), Severity::Warn);
        assert_eq!(report().json()["severity"], "warn");
        assert_eq!(DoctorReport::new("x".into()).worst(), Severity::Fine);
    }
}
