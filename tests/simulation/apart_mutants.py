"""Protections of shards that share no folder: texts of the program and what replaces them; see `fixed.py`."""

from __future__ import annotations

APART = (
    ("parts are copied before marks", "server/checkpoints/copies.py",
     "        here = parts_in(self._folder)\n",
     "        for shard, mark in marks.items():\n"
     "            if shard in range(self._config.shards) and shard != self._config.shard:\n"
     "                self._note(shard, mark)\n"
     "        here = parts_in(self._folder)\n"),
    ("parts are copied before the generation that begins from them", "server/checkpoints/copies.py",
     "        here = parts_in(self._folder)\n",
     "        known = generations.newest(self._config.out)\n"
     "        if newest and (known is None or known.number < newest.number):\n"
     '            generations.create(self._config.out, newest, by="copy")\n'
     "        here = parts_in(self._folder)\n"),
    ("shard 0 alone begins generations", "server/peers.py",
     "return self._begin if self._others and self._config.shard else None", "return None"),
    ("two generations of one number become one", "server/checkpoints/copies.py",
     "known.number == newest.number and known != newest", "False"),
    ("shard 0 begins no generation before it has looked", "server/checkpoints/copies.py",
     "        if not self.is_whole:\n", "        if False:\n"),
    ("a shard that starts looks into the folders of all others", "server/service.py",
     "peers.look(FIRST_LOOK_S)", "peers.look()"),
    ("on an empty disk a shard waits for all others", "server/peers.py",
     "                    if not unheard:\n", "                    if True:\n"),
    ("while one does not answer, all are asked again", "server/peers.py",
     "shard for shard in self._others if not self._copy(clients, shard, own=own)]",
     "shard for shard in self._others if shard not in self._heard and not self._copy(clients, shard, own=own)]"),
    ("a shard that lost its disk gets back its mark", "server/peers.py",
     "        self._copies.note_own(heard.marks for heard in list(self._heard.values()))\n", ""),
    ("a shard that lost its disk gets back its parts", "server/peers.py",
     "own = not self._copies.is_whole\n", "own = False\n"),
    ("a shard serves when another knows that it has entered the generation", "server/service.py",
     "                    peers.confirm(generation, lambda: daemon.signalled)\n", ""),
    ("it knows the same generation of that number", "server/peers.py",
     " if heard.generation == generation]", "]"),
    ("removed parts are forgotten", "server/checkpoints/copies.py",
     "            self._forget(peer, parts)\n", "            pass\n"),
    ("what a shard lacks that has not looked is not forgotten", "server/checkpoints/copies.py",
     'if found.get("whole") is True:', "if True:"),
    ("copies are not forgotten because a disk was lost", "server/checkpoints/copies.py",
     "if any(name.endswith(ends) for name in parts):", "if True:"),
    ("a shard that ends waits until the others know", "server/service.py",
     "            daemon.aside(partial(peers.part, lambda: daemon.signalled))\n", "            pass\n"),
    ("it also waits for those that look for what they have lost", "server/peers.py",
     "if heard is not None and heard.is_whole else None", "if heard is not None else None"),
    ("it waits longer if no generation is to follow", "server/peers.py",
     "PARTING_FOR_GOOD_S if for_good else PARTING_S", "PARTING_S"),
    ("a shard that finds its run over says so", "server/service.py",
     "    generations.leave(config, generation, RunEnd(Ending(ended.ended)))\n", ""),
    ("shard 0 records the end for another one when it has all final checkpoints itself", "server/checkpoints/copies.py",
     "if wanted.ended and (", "if False and ("),
    ("a part that its owner wrote again is copied again", "server/checkpoints/copies.py",
     "        return is_owner if name in here else", "        return False if name in here else"),
)  # fmt: skip
