//! Generators in processes of their own, so that the open-file limit of one process does not bound the load, and so that
//! the scheduler prefers the server and the quiet tenant.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::sync::watch;

use super::generator::{GeneratorOrder, GeneratorPlan, GeneratorReport, generate};

/// Longer than a busy server takes to answer all that was acknowledged.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(300);

/// A generator that runs: a niced process, or tasks of this one.
pub(crate) struct RunningGenerator {
    orders: GeneratorOrders,
    reports: watch::Receiver<GeneratorReport>,
    child: Option<Child>,
}

enum GeneratorOrders {
    Tasks(watch::Sender<GeneratorOrder>),
    Process(ChildStdin),
}

impl RunningGenerator {
    /// Starts a generator as a process of this program, or, without one, within this process.
    pub(crate) fn start(program: Option<&Path>, plan: GeneratorPlan) -> anyhow::Result<Self> {
        let (sender, reports) = watch::channel(GeneratorReport::default());
        let Some(program) = program else {
            let (orders, received) = watch::channel(GeneratorOrder::Run);
            tokio::spawn(generate(plan, received, move |report| drop(sender.send(report))));
            return Ok(Self { orders: GeneratorOrders::Tasks(orders), reports, child: None });
        };
        let mut command = Command::new("nice");
        command.args(["-n", "10"]).arg(program).arg("load-clients");
        command.arg(serde_json::to_string(&plan)?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("nice")?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stdout = stdout.context("the output")?;
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Ok(report) = serde_json::from_str(&line) {
                    let _ = sender.send(report);
                }
            }
        });
        let orders = GeneratorOrders::Process(stdin.context("the input")?);
        Ok(Self { orders, reports, child: Some(child) })
    }

    pub(crate) fn report(&self) -> GeneratorReport {
        self.reports.borrow().clone()
    }

    /// Ends the load.
    pub(crate) fn stop(&mut self) {
        self.order(GeneratorOrder::Stop);
    }

    /// Asks again for everything that was acknowledged; the last report.
    pub(crate) fn verify(mut self) -> anyhow::Result<GeneratorReport> {
        self.order(GeneratorOrder::Verify);
        let deadline = Instant::now() + VERIFY_TIMEOUT;
        while !self.report().is_verified {
            if Instant::now() > deadline {
                bail!("what was acknowledged could not be asked for within {VERIFY_TIMEOUT:?}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(self.report())
    }

    fn order(&mut self, order: GeneratorOrder) {
        match &mut self.orders {
            GeneratorOrders::Tasks(orders) => {
                let _ = orders.send_replace(order);
            }
            GeneratorOrders::Process(stdin) => {
                let _ = writeln!(
                    stdin,
                    "{}",
                    if order == GeneratorOrder::Stop { "stop" } else { "verify" }
                );
            }
        }
    }
}

impl Drop for RunningGenerator {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The main function of a generator's process: orders come by standard input, and it ends with it.
///
/// # Errors
///
/// When the plan cannot be read.
#[allow(clippy::print_stdout, reason = "the parent reads the reports from standard output")]
pub fn run_generator_process(plan: &str) -> anyhow::Result<()> {
    let plan: GeneratorPlan = serde_json::from_str(plan).context("the plan")?;
    let (orders, received) = watch::channel(GeneratorOrder::Run);
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let is_stop = line == "stop";
            let _ =
                orders.send(if is_stop { GeneratorOrder::Stop } else { GeneratorOrder::Verify });
        }
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(generate(plan, received, |report| {
        if let Ok(line) = serde_json::to_string(&report) {
            println!("{line}");
        }
    }));
    // The parent reads the last report, and closes the input.
    thread::sleep(Duration::from_secs(60));
    Ok(())
}
