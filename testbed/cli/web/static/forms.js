// Forms of commands. The server derives them from the options of the commands.

import { byId, html, setText } from "./elements.js";

/** Quote a word for the shell if it needs quotes. */
const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

export class Forms {
  /** run: called with a command's name, the values of its form, and a name for its job. */
  constructor(run) {
    this.run = run;
    this.forms = {};
    this.dialog = byId("form");
    this.pending = ""; // name of the last sent form's job, until the job has ended
    this.started = 0;
  }

  /** Open a command's form with these values. */
  open(name, values = {}) {
    const form = this.forms[name];
    if (!form || this.dialog.open) return;
    this.name = name;
    this.parameters = form.parameters;
    this.words = form.words;
    this.preview = html("code", { className: "preview" });
    this.message = html("p", { className: "message", role: "alert" });
    this.submit = html("button", { className: "primary" }, "Run");
    const operands = form.parameters.filter((field) => field.operand);
    const options = form.parameters.filter((field) => !field.operand);
    const element = html(
      "form", { method: "dialog", noValidate: true },
      html("h2", { id: "form-title" }, form.words),
      html("p", { className: "muted" }, form.help),
      html("div", { className: "fields" }, ...operands.map((field) => this.#field(field, values[field.name]))),
      html("div", { className: "fields options" }, ...options.map((field) => this.#field(field, values[field.name]))),
      html("div", { className: "foot" }, this.preview, this.message,
        html("div", { className: "buttons" },
          html("button", { type: "button", onclick: () => this.dialog.close() }, "Cancel"), this.submit)),
    );
    element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    element.addEventListener("input", () => this.#show());
    this.dialog.replaceChildren(element);
    this.dialog.setAttribute("aria-labelledby", "form-title");
    this.pending = "";
    this.#show();
    this.dialog.showModal();
    const empty = [...element.elements].find((field) => field.name && !field.value && field.type !== "checkbox");
    (empty ?? element.elements[0])?.focus();
  }

  /** Show the state of the command that the form has started. The form closes when the command has succeeded, or runs until
   * it is stopped; it opens again if such a command fails. */
  showJob(jobs) {
    const job = this.pending && jobs.find((candidate) => candidate.name === this.pending);
    if (!job) return;
    if (job.state === "failed") {
      this.pending = "";
      if (!this.dialog.open) this.open(this.name, this.sent);
      this.submit.disabled = false;
      setText(this.message, job.message);
    } else if (job.state === "done" || job.stoppable) {
      if (job.state === "done") this.pending = "";
      this.dialog.close();
    } else setText(this.message, `${job.state} …`);
  }

  #send() {
    if (this.submit.disabled) return;
    const values = (this.sent = this.#values());
    this.started += 1;
    this.pending = `form-${crypto.randomUUID()}-${this.started}`;
    this.submit.disabled = true;
    setText(this.message, "");
    this.run(this.name, values, this.pending);
  }

  #field(field, value) {
    const name = field.name;
    let control;
    if (field.kind === "flag") control = html("input", { type: "checkbox", name, checked: Boolean(value) });
    else if (field.kind === "choice") {
      const choices = field.required ? field.choices : ["", ...field.choices];
      control = html("select", { name }, ...choices.map((choice) => html("option", { value: choice, selected: choice === value }, choice)));
    } else if (field.kind === "lines")
      control = html("textarea", { name, rows: 2, placeholder: `${field.placeholder}, one a line`, value: (value ?? []).join?.("\n") ?? value });
    else {
      const more = field.kind === "number" ? { inputMode: "numeric" } : {};
      control = html("input", { type: "text", name, placeholder: field.placeholder, value: value ?? "", autocomplete: "off", spellcheck: false, ...more });
      if (field.operand) control.setAttribute("list", "names");
    }
    const label = field.operand ? field.label : field.label.replace(/^--/, "");
    return html("label", { title: field.help, "data-kind": field.kind }, html("span", {}, label), control, html("small", {}, field.help));
  }

  #values() {
    const values = {};
    for (const field of this.parameters) {
      const control = this.dialog.querySelector(`[name="${CSS.escape(field.name)}"]`);
      if (field.kind === "flag") values[field.name] = control.checked;
      else if (field.kind === "lines") values[field.name] = control.value.split("\n").map((line) => line.trim()).filter(Boolean);
      else values[field.name] = control.value.trim();
    }
    return values;
  }

  /** Show the command line of the filled form. */
  #show() {
    const words = [];
    const values = this.#values();
    for (const field of this.parameters) {
      const value = values[field.name];
      if (!value || value.length === 0) continue;
      if (field.operand) words.push(value);
      else if (field.kind === "flag") words.push(field.label);
      else for (const text of [value].flat()) words.push(`${field.label} ${quote(text)}`);
    }
    setText(this.preview, [this.words, ...words].join(" "));
  }
}
