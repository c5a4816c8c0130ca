// Waits until this many items are in the browser's outbox.
() => new Promise((done, no) => {
  const opening = indexedDB.open("crabtalk");
  opening.onerror = () => no(opening.error);
  opening.onsuccess = () => {
    const counting = opening.result.transaction("outbox").objectStore("outbox").count();
    counting.onsuccess = () => {
      opening.result.close();
      done(counting.result);
    };
  };
})
