/** Keeps Prism from highlighting by itself: the page takes its tokens and makes text nodes of them. */
window.Prism = { manual: true, disableWorkerMessageHandler: true };
