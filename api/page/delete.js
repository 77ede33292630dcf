// Asks before a model is deleted from the node's disk, and again if other programs have put some of it there.

import { removeModel } from "./api.js";
import { byId, setMarked, setText } from "./elements.js";

export class DeleteDialog {
  #model = "";
  #isOthers = false; // whether the user has been told that another program fetched it

  /** `changed()`: it is deleted. `failed(error)`: whether the page deals with the error itself. */
  constructor({ changed, failed }) {
    this.changed = changed;
    this.failed = failed;
    byId("delete-model").addEventListener("click", () => this.#remove());
  }

  ask(model, node) {
    this.#model = model;
    this.#isOthers = false;
    setText(byId("delete-title"), `Delete ${model}?`);
    setText(byId("delete-text"), `Its files go from the disk of ${node}. Other nodes keep theirs.`);
    setMarked(byId("delete-error"), "");
    setText(byId("delete-model"), "Delete");
    byId("delete-dialog").showModal();
  }

  async #remove() {
    try {
      await removeModel(this.#model, this.#isOthers);
      byId("delete-dialog").close();
      this.changed();
    } catch (error) {
      if (this.failed(error)) return;
      setMarked(byId("delete-error"), error.message);
      this.#isOthers = error.code === "model_not_fetched";
      setText(byId("delete-model"), this.#isOthers ? "Delete it all the same" : "Try again");
    }
  }
}
