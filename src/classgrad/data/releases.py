"""The releases of all datasets: addresses, checksums, counts and licences."""

from collections.abc import Mapping

from classgrad.data.datasets import Dataset, Download, Split
from classgrad.errors import unknown

DIGITS = tuple("0123456789")
LETTERS = tuple("ABCDEFGHIJ")


def _idx(base: str, folder: str, files: dict[int, str]) -> tuple[Download, ...]:
    """Return the four files of an idx release from their sizes and checksums."""
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        Download(f"{base}/{part}-ubyte.gz", size, f"sha256:{digest}", f"{folder}/{part}-ubyte.gz")
        for part, (size, digest) in zip(parts, files.items(), strict=True)
    )


_CIFAR = "no licence stated; cite A. Krizhevsky, Learning Multiple Layers of Features, 2009"

_CIFAR10 = Dataset(
    name="cifar10",
    title="CIFAR-10",
    format="cifar",
    folder="cifar-10-batches-py",
    shape=(3, 32, 32),
    licence=_CIFAR,
    train=Split(
        count=50_000,
        per_class=(5000,) * 10,
        files={
            "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
            "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
            "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        },
    ),
    test=Split(
        count=10_000,
        per_class=(1000,) * 10,
        images="177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        labels="cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        files={
            "test_batch": "sha256:f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"
        },
    ),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            170_498_071,
            "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            "cifar-10-batches-py",
            unpack="members",
            members=("batches.meta", *(f"data_batch_{n}" for n in range(1, 6)), "test_batch"),
        ),
    ),
)

_CIFAR100 = Dataset(
    name="cifar100",
    title="CIFAR-100",
    format="cifar",
    folder="cifar-100-python",
    shape=(3, 32, 32),
    licence=_CIFAR,
    train=Split(
        count=50_000,
        per_class=(500,) * 100,
        images="de64658905c6b161606e3649ddafce7cf86c7634a0cf9116d518e64ef46a33c5",
        labels="84d5d92c537d29873866f1438b108b2144944d104909da2ff6ac0e1a287bb147",
        files={"train": "sha256:735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b"},
    ),
    test=Split(
        count=10_000,
        per_class=(100,) * 100,
        images="83c56492b2c11211ad1bb2dbd4f2eef4170a0441e41a41f3039c3144b1f5a511",
        labels="04d644df9296bd02d64d7af836137fb73b755691e24c7d3d7a67f3e63146a945",
        files={"test": "sha256:4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864"},
    ),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            169_001_437,
            "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            "cifar-100-python",
            unpack="members",
            members=("meta", "test", "train"),
        ),
    ),
)

_MNIST = Dataset(
    name="mnist",
    title="MNIST",
    format="idx",
    folder="MNIST/raw",
    shape=(1, 28, 28),
    class_names=DIGITS,
    licence="Creative Commons Attribution-Share Alike 3.0; Y. LeCun, C. Cortes, C. Burges",
    train=Split(
        count=60_000,
        per_class=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        images="741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        labels="1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
    ),
    test=Split(
        count=10_000,
        per_class=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
        images="6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        labels="ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    ),
    downloads=_idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "MNIST/raw",
        {
            9_912_422: "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            28_881: "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            1_648_877: "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            4_542: "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
)

_FASHION = Dataset(
    name="fashion_mnist",
    title="Fashion-MNIST",
    format="idx",
    folder="FashionMNIST/raw",
    shape=(1, 28, 28),
    class_names=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    licence="MIT; Zalando SE",
    train=Split(
        count=60_000,
        per_class=(6000,) * 10,
        images="2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        labels="657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
    ),
    test=Split(
        count=10_000,
        per_class=(1000,) * 10,
        images="c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        labels="3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    ),
    downloads=_idx(
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        "FashionMNIST/raw",
        {
            26_421_880: "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            29_515: "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            4_422_102: "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            5_148: "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
)

_SVHN_TRAIN = "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"
_SVHN_TEST = "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"

_SVHN = Dataset(
    name="svhn",
    title="SVHN",
    format="svhn",
    folder=".",
    shape=(3, 32, 32),
    class_names=DIGITS,
    licence="for non-commercial use only; Y. Netzer and others, 2011",
    train=Split(
        count=73_257,
        per_class=(4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
        files={"train_32x32.mat": _SVHN_TRAIN},
    ),
    test=Split(
        count=26_032,
        per_class=(1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
        labels="c2488ef300c629f4bd90a3d2a7b4141589e5b5a4f9046845dfc1a9021319e31a",
        files={"test_32x32.mat": _SVHN_TEST},
    ),
    downloads=(
        Download(
            "https://ufldl.stanford.edu/housenumbers/train_32x32.mat",
            182_040_794,
            _SVHN_TRAIN,
            "train_32x32.mat",
        ),
        Download(
            "https://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            64_275_384,
            _SVHN_TEST,
            "test_32x32.mat",
        ),
    ),
)

_NOTMNIST = Dataset(
    name="notmnist",
    title="notMNIST",
    format="notmnist",
    folder="notMNIST",
    shape=(1, 28, 28),
    # The largest file has fewer than a thousand bytes.
    largest=64 * 2**10,
    class_names=LETTERS,
    remark="the split is our own, not that of GPM and CGP",
    licence="no licence stated; letters of fonts found on the web, Y. Bulatov, 2011",
    train=Split(
        count=16_854,
        per_class=(1685, 1686, 1686, 1686, 1686, 1685, 1685, 1685, 1685, 1685),
        images="d8ce5a36673022003d3e9b4caed6eb2357ff114506b7c17d0f2ed3bad20892fe",
        labels="bdcbba9c873bf08cda814e481abafd0c96fb1577dc122a0575bcb164df01fcb8",
    ),
    test=Split(
        count=1_870,
        per_class=(187,) * 10,
        images="db2b8458b883856c4b784f2eaf0bf9fee5dcba2dbe6efb07ee40ccb721230b26",
        labels="6162d64ea1d0bc7203da26c5d2e46417bbc94b165c6973555eedb6aac7ab6811",
    ),
    downloads=(
        Download(
            "https://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",
            8_458_043,
            None,
            "notMNIST",
            unpack="letters",
        ),
    ),
)

_NOTMNIST32 = Dataset(
    name="notmnist32",
    title="notMNIST at 32 x 32 in the split of HAT, GPM and CGP",
    format="notmnist32",
    folder="notmnist",
    shape=(1, 32, 32),
    class_names=LETTERS,
    licence=_NOTMNIST.licence,
    train=Split(count=16_853),
    test=Split(count=1_873),
    by_hand="https://github.com/nkundiushuti/notmnist_convert/raw/master/notmnist.zip",
)

_CLINC = "https://raw.githubusercontent.com/clinc/oos-eval/master/data"

_CLINC150 = Dataset(
    name="clinc150",
    title="CLINC150",
    format="clinc150",
    folder="clinc150",
    shape=(256,),  # bytes of a sentence; the longest has 136
    licence="Creative Commons Attribution 3.0; S. Larson et al.",
    content="sentences",
    train=Split(
        count=18_000,
        per_class=(120,) * 150,
        images="6a55d2d9110959f9a57f37277eada2ca66d1ecbc1a3b1d5066229c995b1fc3b5",
        labels="da5c434603821cb02cab5bf6a6e0c9bad0cee4f56648f00ca7f0b09184003c75",
    ),
    test=Split(
        count=4_500,
        per_class=(30,) * 150,
        images="4348937963a0273a8c997c617688c7539b9b551aa5572f0f9fbbecd260a28763",
        labels="ac7f37ffe16dddec799a2b4e27fc6cf0233d91441017a884ec096743ff39ac4d",
    ),
    downloads=(
        Download(
            f"{_CLINC}/data_full.json",
            2_495_390,
            "sha256:36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0",
            "clinc150/data_full.json",
        ),
        Download(
            f"{_CLINC}/domains.json",
            3_818,
            "sha256:b947b579d3b8e74b06f93b01083d8efaff2888b43a3e362533bd88a6e1211b3a",
            "clinc150/domains.json",
        ),
    ),
)

DATASETS: Mapping[str, Dataset] = {
    data.name: data
    for data in (
        *(_CIFAR10, _CIFAR100, _MNIST, _FASHION, _SVHN, _NOTMNIST, _NOTMNIST32),
        _CLINC150,
    )
}


def describe(which: str | Dataset) -> Dataset:
    """Return the dataset called `which`, or `which` itself if it is a description already.

    >>> describe("mnist").train.count
    60000
    """
    if isinstance(which, Dataset):
        return which
    if which not in DATASETS:
        raise unknown("dataset", which, DATASETS)
    return DATASETS[which]
