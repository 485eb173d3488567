"""The words of the keyword task, by category, written for this project.

Two rules hold over the whole list, and the tests check them: no word appears twice, and no word occurs inside another
one. The second keeps the reward honest: it looks for a keyword anywhere in the response, so ``car`` would be found in
``carrot``. The verbs stand in the past tense and take an object.
"""

from __future__ import annotations

PEOPLE = (
    "farmer", "teacher", "doctor", "baker", "sailor", "pilot", "artist", "singer",
    "dancer", "writer", "nurse", "hunter", "child", "girl", "king", "queen",
    "knight", "judge", "guard", "miner", "tailor", "butcher", "clerk", "lawyer",
    "barber", "student", "coach", "poet", "uncle", "cousin", "friend", "sister",
)  # fmt: skip

ANIMALS = (
    "dog", "cat", "horse", "cow", "pig", "sheep", "goat", "duck",
    "goose", "rabbit", "mouse", "fox", "wolf", "bear", "lion", "tiger",
    "zebra", "camel", "otter", "beaver", "deer", "moose", "eagle", "hawk",
    "robin", "swan", "frog", "toad", "snake", "turtle", "lizard", "whale",
    "shark", "salmon", "crab", "spider", "beetle", "kitten", "puppy", "parrot",
)  # fmt: skip

FOOD = (
    "apple", "bread", "butter", "cheese", "honey", "soup", "rice", "pasta",
    "salad", "pizza", "cake", "cookie", "candy", "sugar", "salt", "pepper",
    "lemon", "melon", "peach", "plum", "grape", "cherry", "banana", "carrot",
    "potato", "tomato", "onion", "garlic", "bean", "spinach", "pumpkin", "noodle",
    "sausage", "waffle", "muffin", "yogurt", "milk", "juice", "coffee", "walnut",
    "almond", "mango", "olive", "pickle", "syrup", "biscuit", "egg", "cream",
)  # fmt: skip

THINGS = (
    "lamp", "table", "chair", "window", "door", "clock", "book", "pencil",
    "paper", "basket", "bottle", "cup", "plate", "spoon", "fork", "knife",
    "blanket", "pillow", "mirror", "ladder", "hammer", "shovel", "bucket", "candle",
    "lantern", "ribbon", "rope", "box", "bag", "suitcase", "umbrella", "jacket",
    "coat", "shirt", "scarf", "glove", "boot", "shoe", "necklace", "coin",
    "wallet", "camera", "radio", "phone", "guitar", "violin", "piano", "drum",
    "flute", "kite", "puzzle", "doll", "bicycle", "wagon", "boat", "truck",
    "engine", "wheel", "anchor", "compass", "map", "letter", "stamp", "poster",
    "curtain", "sofa", "desk", "shelf", "brush", "soap", "towel", "needle",
    "button", "helmet", "shield", "crown", "statue", "vase", "bell", "robot",
)  # fmt: skip

PLACES = (
    "river", "lake", "ocean", "beach", "island", "forest", "mountain", "valley",
    "desert", "canyon", "cave", "hill", "meadow", "garden", "barn", "village",
    "city", "market", "school", "library", "hospital", "museum", "theater", "kitchen",
    "office", "station", "airport", "harbor", "bridge", "tower", "castle", "palace",
    "temple", "church", "hotel", "stadium", "park", "street", "tunnel", "factory",
)  # fmt: skip

ADJECTIVES = (
    "red", "blue", "green", "yellow", "purple", "orange", "brown", "black",
    "white", "pink", "golden", "silver", "big", "small", "tall", "short",
    "tiny", "huge", "wide", "narrow", "thick", "heavy", "light", "fast",
    "slow", "quick", "loud", "quiet", "soft", "smooth", "rough", "sharp",
    "dull", "bright", "dark", "clean", "dirty", "dusty", "muddy", "wet",
    "dry", "cold", "warm", "cool", "frozen", "fresh", "rotten", "sweet",
    "sour", "bitter", "spicy", "hungry", "thirsty", "sleepy", "happy", "sad",
    "angry", "proud", "brave", "shy", "kind", "cruel", "gentle", "clever",
    "silly", "wise", "lazy", "busy", "calm", "nervous", "jolly", "lonely",
    "polite", "rude", "honest", "famous", "rich", "poor", "young", "ancient",
    "modern", "broken", "empty", "full", "square", "flat", "steep", "curly",
    "shiny", "wooden", "plastic", "magic", "odd", "plain", "fancy", "secret",
)  # fmt: skip

VERBS = (
    "found", "carried", "painted", "washed", "watched", "followed", "chased", "pushed",
    "pulled", "lifted", "dropped", "opened", "closed", "fixed", "cooked", "tasted",
    "borrowed", "bought", "sold", "caught", "kicked", "threw", "grabbed", "held",
    "hid", "touched", "kissed", "hugged", "helped", "visited", "noticed", "loved",
    "liked", "hated", "missed", "wanted", "needed", "forgot", "counted", "ripped",
    "burned", "polished", "decorated", "wrapped", "packed", "mailed", "drew", "described",
    "studied", "trusted", "guided", "chose", "kept", "lost", "saved", "stole",
    "rescued", "drank", "smelled", "built", "moved", "shook", "fed", "collected",
)  # fmt: skip

NOUNS = PEOPLE + ANIMALS + FOOD + THINGS + PLACES
WORDS = NOUNS + ADJECTIVES + VERBS
