"""Word pools and the held-out rule of the generated text.

held(kind, value) decides by SHA-256 whether a value (an operand, a name, a tool name, a prompt)
belongs to the exam. Training text never uses a held value, the exam uses nothing else.
"""

import hashlib

HELD_MODULUS = 9  # one value in nine is the exam's


def held(kind, value):
    digest = hashlib.sha256(f"{kind}\0{value}".encode()).digest()
    return int.from_bytes(digest[:8], "little") % HELD_MODULUS == 0


def _names():
    starts = ("Al An Ar Ba Be Bo Ca Ce Co Da De Do El Em Er Fa Fe Fi Ga Ge Gi Ha He Ho Il In Ja Jo "
              "Ka Ke Ki La Le Li Lo Ma Me Mi Mo Na Ne No Ol Or Pa Pe Pi Ra Re Ro Sa Se So Ta Te To "
              "Ul Va Ve Vi Wa Wi Ya Za Ze").split()
    middles = "b d l m n r s v ri li na ra".split()
    ends = "a an el en i ia in is o on us y".split()
    return [s + m + e for s in starts for m in middles for e in ends
            if not (m[-1] in "aeiou" and e[0] in "aeiou") and s[-1] not in "lmnr"]


NAMES = _names()
CITIES = ("Oslo Rome Lima Cairo Delhi Paris Tokyo Berlin Madrid Vienna Dublin Lisbon Prague Warsaw "
          "Athens Zurich Geneva Boston Denver Austin Dallas Seattle Toronto Havana Quito Bogota "
          "Nairobi Accra Tunis Dakar Hanoi Manila Seoul Kyoto Osaka Perth Sydney Bergen Turin Milan "
          "Naples Porto Seville Krakow Riga Vilnius Tallinn Helsinki Malmo Aarhus").split()
ANIMALS = ("fox owl cat dog bear hare mouse goat duck frog crow wolf deer otter badger rabbit turtle "
           "sparrow hedgehog squirrel").split()
ROLES = ("baker sailor painter farmer miller gardener singer weaver teacher fisher carpenter "
         "shepherd potter tailor clockmaker").split()
PLACES = ("forest village harbor garden valley meadow castle market library mill island mountain "
          "river cave tower orchard").split()
THINGS = ("lantern key map bell coin flute kite letter book rope basket compass ring mirror boat "
          "blanket drum seed").split()
FRUITS = "apples pears plums cherries lemons figs nuts stones shells cards books pens eggs coins".split()
COLORS = "red blue green white black yellow brown gray silver golden".split()
ADJECTIVES = "small old quiet brave kind clever gentle curious patient cheerful shy proud".split()
JOBS = "baker nurse pilot farmer painter teacher lawyer driver writer chemist plumber singer".split()
VERBS = ("get find list read open check fetch count plan send start stop create update delete show "
         "load save move copy sort scan print draw book rent track watch rate test").split()
NOUNS = ("weather report ticket order invoice flight hotel train recipe song album photo note task "
         "event meeting contact message file folder route price stock score match game player team "
         "course lesson exam book author movie ticket parcel package room light heater alarm timer "
         "camera sensor garden plant animal doctor visit loan account payment budget").split()
NOUNS = sorted(set(NOUNS))
TOOL_NAMES = [f"{v}_{n}" for v in VERBS for n in NOUNS]
FUNC_WORDS = ("sum item row value list node pair point text word line page user data count total "
              "price score index range table field block chunk group").split()
FUNC_VERBS = "add join make find calc take pick build merge split clean apply solve wrap fold".split()
FUNC_NAMES = [f"{v}_{w}" for v in FUNC_VERBS for w in FUNC_WORDS]
