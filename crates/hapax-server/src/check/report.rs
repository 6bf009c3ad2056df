//! The findings of a check: as text, as JSON and as JUnit's XML.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};

use super::checks::Check;
use super::profile::Profile;

pub(super) enum CheckVerdict {
    Holds,
    Fails {
        expected: String,
        seen: String,
    },
    /// Not as the rules recommend (SHOULD), which they leave to the service.
    NotRecommended {
        expected: String,
        seen: String,
    },
    Skipped(String),
}

pub(super) struct CheckFinding {
    pub(super) check: &'static Check,
    pub(super) verdict: CheckVerdict,
    /// The requests of the check with their answers.
    pub(super) exchanges: Vec<String>,
}

pub(super) struct CheckReport {
    url: String,
    profile: Profile,
    pub(super) findings: Vec<CheckFinding>,
}

const NAME_WIDTH: usize = 24;

impl CheckFinding {
    /// One line where it holds; what was expected, what was seen and the exchange that shows it where not.
    pub(super) fn message(&self) -> String {
        let Check { name, promise, .. } = self.check;
        let style = |colour: AnsiColor| colour.on_default().bold();
        let line = |mark: &str, style: Style, text: &str| {
            format!("{style}{mark}{style:#} {name:<NAME_WIDTH$} {text}")
        };
        match &self.verdict {
            CheckVerdict::Holds => line("✓", style(AnsiColor::Green), promise),
            CheckVerdict::Skipped(why) => line("-", Style::new(), &format!("not asked: {why}")),
            CheckVerdict::Fails { expected, seen }
            | CheckVerdict::NotRecommended { expected, seen } => {
                let mut text = match self.verdict {
                    CheckVerdict::Fails { .. } => line("✗", style(AnsiColor::Red), promise),
                    _ => line("!", style(AnsiColor::Yellow), &format!("recommended: {promise}")),
                };
                let _ = write!(text, "\n    expected: {expected}\n    seen:     {seen}");
                for exchange in &self.exchanges {
                    let _ = write!(text, "\n      {exchange}");
                }
                text
            }
        }
    }
}

impl CheckReport {
    pub(super) fn new(url: String, profile: Profile) -> Self {
        Self { url, profile, findings: Vec::new() }
    }

    /// Whether nothing fails and, where recommendations count as well, each is followed.
    pub(super) fn holds(&self, with_recommendations: bool) -> bool {
        !self.findings.iter().any(|finding| match finding.verdict {
            CheckVerdict::Fails { .. } => true,
            CheckVerdict::NotRecommended { .. } => with_recommendations,
            CheckVerdict::Holds | CheckVerdict::Skipped(_) => false,
        })
    }

    pub(super) fn heading(&self) -> String {
        format!("hapax check: {}, rules of {}\n", self.url, self.profile.name())
    }

    pub(super) fn summary(&self) -> String {
        let count = |which: fn(&CheckVerdict) -> bool| {
            self.findings.iter().filter(|finding| which(&finding.verdict)).count()
        };
        format!(
            "\n{} hold, {} do not, {} are only recommended and do not, {} were not asked",
            count(|verdict| matches!(verdict, CheckVerdict::Holds)),
            count(|verdict| matches!(verdict, CheckVerdict::Fails { .. })),
            count(|verdict| matches!(verdict, CheckVerdict::NotRecommended { .. })),
            count(|verdict| matches!(verdict, CheckVerdict::Skipped(_)))
        )
    }

    pub(super) fn json(&self) -> Value {
        let [mut holds, mut fails, mut recommended, mut skipped] = [const { Vec::new() }; 4];
        for CheckFinding { check, verdict, exchanges } in &self.findings {
            let name = check.name;
            let shown = |expected: &str, seen: &str| json!({"name": name, "expected": expected, "seen": seen, "exchange": exchanges});
            match verdict {
                CheckVerdict::Holds => holds.push(json!(name)),
                CheckVerdict::Fails { expected, seen } => fails.push(shown(expected, seen)),
                CheckVerdict::NotRecommended { expected, seen } => {
                    recommended.push(shown(expected, seen));
                }
                CheckVerdict::Skipped(why) => skipped.push(json!({"name": name, "why": why})),
            }
        }
        json!({
            "url": self.url,
            "profile": self.profile.name(),
            "holds": holds,
            "fails": fails,
            "recommended": recommended,
            "skipped": skipped,
        })
    }

    pub(super) fn junit(&self) -> String {
        let fails = |finding: &&CheckFinding| matches!(finding.verdict, CheckVerdict::Fails { .. });
        let skips = |finding: &&CheckFinding| matches!(finding.verdict, CheckVerdict::Skipped(_));
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <testsuite name=\"hapax check {}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n",
            escaped(&self.url),
            self.findings.len(),
            self.findings.iter().filter(fails).count(),
            self.findings.iter().filter(skips).count()
        );
        for CheckFinding { check, verdict, exchanges } in &self.findings {
            let _ = write!(text, "  <testcase classname=\"hapax.check\" name=\"{}\"", check.name);
            let _ = match verdict {
                CheckVerdict::Holds => writeln!(text, "/>"),
                CheckVerdict::Skipped(why) => {
                    writeln!(text, "><skipped message=\"{}\"/></testcase>", escaped(why))
                }
                CheckVerdict::Fails { expected, seen } => writeln!(
                    text,
                    "><failure message=\"{}\">expected: {}\n{}</failure></testcase>",
                    escaped(seen),
                    escaped(expected),
                    escaped(&exchanges.join("\n"))
                ),
                // JUnit has no word for a recommendation: its test passes, and its output says the rest.
                CheckVerdict::NotRecommended { expected, seen } => writeln!(
                    text,
                    "><system-out>recommended: {}\nseen: {}\n{}</system-out></testcase>",
                    escaped(expected),
                    escaped(seen),
                    escaped(&exchanges.join("\n"))
                ),
            };
        }
        text.push_str("</testsuite>\n");
        text
    }
}

/// Text as XML has it in an attribute or between tags. Control characters have no form there.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, letter| {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push('\n'),
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::checks::CHECKS;

    fn report() -> CheckReport {
        let mut report = CheckReport::new("http://a/orders".into(), Profile::Ietf);
        let verdicts = [
            CheckVerdict::Holds,
            CheckVerdict::Fails { expected: "1 < 2".into(), seen: "\"3\" & 4\u{1}".into() },
            CheckVerdict::Skipped("give --restart".into()),
            CheckVerdict::NotRecommended { expected: "422".into(), seen: "400".into() },
        ];
        for (check, verdict) in CHECKS.iter().zip(verdicts) {
            let exchanges = vec!["POST /orders -> 201".to_owned()];
            report.findings.push(CheckFinding { check, verdict, exchanges });
        }
        report
    }

    #[test]
    fn check_report_shows_the_exchange_of_a_failure() {
        let report = report();
        assert!(!report.holds(false));
        let summary = "\n1 hold, 1 do not, 1 are only recommended and do not, 1 were not asked";
        assert_eq!(report.summary(), summary);
        let json = report.json();
        assert_eq!(json["holds"], json!([CHECKS[0].name]));
        assert_eq!(json["fails"][0]["expected"], "1 < 2");
        assert_eq!(json["fails"][0]["exchange"][0], "POST /orders -> 201");
        assert_eq!(json["skipped"][0]["why"], "give --restart");
        assert_eq!(json["recommended"][0]["seen"], "400");
    }

    #[test]
    fn check_report_holds_without_recommendations_unless_strict() {
        let mut report = report();
        report.findings.retain(|finding| !matches!(finding.verdict, CheckVerdict::Fails { .. }));
        assert!(report.holds(false));
        assert!(!report.holds(true));
    }

    #[test]
    fn check_junit_report_is_well_formed() {
        let junit = report().junit();
        assert!(junit.contains("tests=\"4\" failures=\"1\" skipped=\"1\""), "{junit}");
        assert!(junit.contains("message=\"&quot;3&quot; &amp; 4\u{fffd}\">expected: 1 &lt; 2\n"));
    }
}
