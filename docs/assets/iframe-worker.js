// Search from disk. Browsers start no worker from a file: address, so a hidden frame takes its place. The frame's window
// is what the worker's script knows as `self`: messages go in as events, and its postMessage brings the answers out.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const self = this.frame.contentWindow;
      self.postMessage = (data) => this.tell(new MessageEvent("message", { data }));
      self.addEventListener("error", (event) => this.tell(new ErrorEvent("error", { message: event.message })));
      this.ready = new Promise((done) => {
        const script = self.document.createElement("script");
        script.src = url;
        script.onload = done;
        self.document.documentElement.append(script);
      });
    }

    tell(event) {
      this[`on${event.type}`]?.(event);
      this.dispatchEvent(event);
    }

    postMessage(data) {
      const self = this.frame.contentWindow;
      this.ready.then(() => self.dispatchEvent(new self.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
