// The settings of a chat: its system prompt, and what its requests say of sampling, length and thinking.

import { describeModel } from "./api.js";
import { CONVERSATION, NUMBERS } from "./chats.js";
import { byId } from "./elements.js";

const OFF = { top_k: "off", min_p: "0", repetition_penalty: "1", max_completion_tokens: "as the context has room" };

export class Settings {
  #model = ""; // whose defaults are shown
  #isAsking = false;

  /** `onChange(values)`: the user has set some. `onError(error)`: whether the page deals with it itself. */
  constructor({ onChange, onError }) {
    this.onChange = onChange;
    this.onError = onError;
    for (const name of ["system", "stop", "thinking"]) {
      byId(name).addEventListener("change", ({ target }) => onChange({ [name]: target.value }));
    }
    for (const name of NUMBERS) {
      byId(name).addEventListener("change", ({ target }) => {
        if (!target.reportValidity()) return;
        onChange({ [name]: target.value === "" ? null : target.valueAsNumber });
      });
    }
    byId("reset-settings").addEventListener("click", () => this.#reset());
    byId("settings").addEventListener("toggle", () => this.#tellDefaults());
  }

  /** Show the settings of a chat, in fields whose empty ones name the defaults of its model. */
  show(chat) {
    for (const name of ["system", "stop", "thinking"]) byId(name).value = chat[name] ?? "";
    for (const name of NUMBERS) byId(name).value = chat[name] ?? "";
    this.setModel(chat.model);
  }

  setModel(model) {
    this.model = model;
    this.#tellDefaults();
  }

  #reset() {
    const none = { stop: "", thinking: "", ...Object.fromEntries(NUMBERS.map((name) => [name, null])) };
    for (const name of Object.keys(none)) byId(name).value = "";
    this.onChange(none);
  }

  /** Ask the node once for each model, when somebody looks. */
  async #tellDefaults() {
    let { model } = this;
    if (!byId("settings").open || !model || model === this.#model || this.#isAsking) return;
    this.#isAsking = true;
    let known = { sampling: {}, thinking_switch: true };
    try {
      known = await describeModel(model);
    } catch (error) {
      if (this.onError(error)) model = ""; // it is asked again; an unknown model has no defaults of its own
    }
    this.#isAsking = false;
    this.#model = model;
    if (!model) return;
    const defaults = { ...OFF, ...CONVERSATION, ...known.sampling };
    for (const name of NUMBERS) byId(name).placeholder = defaults[name];
    if (known.context) byId("max_completion_tokens").placeholder = `up to ${known.context}`;
    byId("thinking").parentElement.hidden = !known.thinking_switch;
    this.#tellDefaults(); // another model may have been chosen meanwhile
  }
}
