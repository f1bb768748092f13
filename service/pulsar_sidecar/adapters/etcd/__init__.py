"""etcd as a metadata store, over the JSON gateway of its version 3 API."""
