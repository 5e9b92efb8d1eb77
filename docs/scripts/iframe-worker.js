// Browsers start no workers for pages that are read from files. There, the worker of the search is
// a script in a frame of its own, which has the same two ends: messages to it, and messages back.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inner.document.createElement("script");
      this.loaded = new Promise((done) => (script.onload = done));
      script.src = url;
      this.inner.document.body.append(script);
    }

    async postMessage(data) {
      await this.loaded;
      this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }
  };
}
